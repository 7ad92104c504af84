"""Suggestions for the next configuration, from Optuna's samplers or our model of learning curves."""
