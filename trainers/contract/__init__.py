"""Contracts of tasks and training functions, and how to load them."""
