"""Tables of the store, connections to its database, and upgrades of older tables."""
