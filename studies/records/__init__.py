"""A study as read from the store: immutable values without SQL."""
