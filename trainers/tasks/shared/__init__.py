"""Parts that several built-in tasks share."""
