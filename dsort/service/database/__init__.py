"""The database: tables, migrations, and transactions that are committed in groups.

This package takes the address of a SQLite or PostgreSQL database, brings the tables up to date, and
provides reading and writing transactions. ``jobs`` and ``schedules`` turn rows into values.
"""
