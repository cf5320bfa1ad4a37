"""The service's state in SQL: SQLite embedded, PostgreSQL by URL."""
