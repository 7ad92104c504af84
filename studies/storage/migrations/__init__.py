"""Alembic migrations of the tables whose names begin with automl_."""
