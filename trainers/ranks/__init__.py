"""Processes of a gang: their start, rendezvous, messages and printed output."""
