"""Tables, engines and migrations of the store."""
