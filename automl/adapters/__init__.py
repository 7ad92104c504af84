"""Our pruners inside other people's searches, one file for each framework."""
