"""A study as read from the store: plain values for every reader."""
