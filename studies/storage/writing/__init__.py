"""Conversion of changes to rows, in one transaction for each commit."""
