"""Who suggests the next configuration: Optuna's samplers, and our model of learning curves."""
