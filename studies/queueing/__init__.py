"""Job queue of a team: turns, workers and accounts."""
