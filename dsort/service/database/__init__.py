"""The database: tables, migrations, and transactions that are committed in groups.

``tables`` has the whole schema: read it first. ``engine`` opens the address of a SQLite or
PostgreSQL database, brings the tables up to date, and provides reading and writing transactions.
``jobs`` and ``schedules`` of the service turn rows into values.
"""
