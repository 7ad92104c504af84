"""The state machine of a study: events in, rows and commands out, no I/O."""
