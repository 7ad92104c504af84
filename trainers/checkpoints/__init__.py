"""Checkpoints: their content and their places, writing and reading."""
