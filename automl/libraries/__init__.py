"""Adapters for libraries that have their own training loop, one file each."""
