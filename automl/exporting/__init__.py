"""Exports models as programs that run without their training code. `exports` is the entry point."""
