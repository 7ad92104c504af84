"""`automl predict`: streams rows from files, and writes predictions."""
