"""Checkpoints: what they hold, where they are kept, how they are written and read."""
