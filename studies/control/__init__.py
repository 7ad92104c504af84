"""The controller: a state machine without I/O, and the loop that carries out its commands."""
