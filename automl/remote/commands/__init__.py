"""One module for each command that acts on a service in a way of its own, with a function of the module's name."""
