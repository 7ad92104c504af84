"""Shared by built-in tasks: files, columns, labels, splits. No torch, so that a launch can check data at once."""
