"""Our pruners in searches of other frameworks, one file for each framework."""
