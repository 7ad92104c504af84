"""Training functions as trials: `trial.epochs(...)` and its parts. Begin with `trial`."""
