"""Adapters for libraries that have their own training loop, one file for each library."""
