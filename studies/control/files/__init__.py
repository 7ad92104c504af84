"""Checkpoints on disk: which are kept, which are deleted, and which no row mentions."""
