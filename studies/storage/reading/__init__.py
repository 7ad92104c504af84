"""Rows become records."""
