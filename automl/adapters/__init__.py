"""Adapters for two other search libraries: Optuna and Ray Tune."""
