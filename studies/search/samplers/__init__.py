"""Samplers, which suggest the next configuration: Optuna's, or our model of learning curves."""
