"""Alembic migrations of the automl_ tables."""
