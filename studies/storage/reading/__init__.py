"""Converts database rows to records."""
