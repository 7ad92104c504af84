"""`automl predict`: rows from files, one after the other, and the answers to them. `predict` is the entrance."""
