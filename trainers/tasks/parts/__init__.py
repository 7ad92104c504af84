"""What the built-in tasks share: files, columns, labels, splits. No torch, so that a launch can check data at once."""
