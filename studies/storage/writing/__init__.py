"""Writes a controller's changes as rows, in one transaction for each commit."""
