"""Checkpoints on disk: which are kept, which are deleted, and what nobody mentions."""
