"""`automl predict`: streams rows from files, and writes predictions. Entry point: `predict`."""
