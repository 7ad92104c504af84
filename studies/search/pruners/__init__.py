"""Pruners, which decide whether a trial continues at a rung; one file for each."""
