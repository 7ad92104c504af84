"""Whose study is next, on which worker, and with whose money? The queue of a team, and the accounts behind it."""
