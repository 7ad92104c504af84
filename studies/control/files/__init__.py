"""Checkpoints on disk: files to keep, files to delete, and files that no row mentions."""
