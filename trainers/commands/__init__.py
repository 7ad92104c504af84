"""Trains a trial by a command: a program in any language, one process for each rank. Begin with `command_trainer`."""
