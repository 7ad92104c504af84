"""Pruners of this project in searches of other frameworks, one file for each framework."""
