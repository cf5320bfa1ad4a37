"""Alembic's entry: runs the migrations on the connection of ``open_database``."""

from __future__ import annotations

from alembic import context

from dsort.service.database.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, transactional_ddl=False)
context.run_migrations()
