"""Checkpoints: what they contain, where they are stored, and how they are written and read."""
