"""Training functions as trials: `trial.epochs(...)` and what it needs."""
