"""Gangs, the ranks of one attempt: on Ray, or simulated from recorded learning curves in virtual time."""
