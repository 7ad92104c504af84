"""Conversion of rows to records."""
