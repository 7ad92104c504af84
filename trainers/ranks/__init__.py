"""Processes of a trial's ranks: start, rendezvous, messages and printed output."""
