"""Checkpoints on disk: which files to keep, which to delete, and which no row of the store mentions."""
