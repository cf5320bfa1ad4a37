"""The database: tables, migrations, and transactions that are committed in groups.

In: an address of SQLite or PostgreSQL. Out: reading and writing transactions on tables that are up
to date. Rows become values in ``jobs`` and ``schedules``.
"""
