"""Rules that decide at a rung, one file each."""
