"""The state machine of a study: turns events into rows to store and commands to carry out, without I/O."""
