"""The controller: a state machine without I/O, and the shell that carries its commands out."""
