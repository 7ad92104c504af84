"""A command as a trial: a program in any language, one process for each rank. `command_trainer` runs it."""
