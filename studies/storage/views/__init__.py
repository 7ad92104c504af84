"""Mirrors of the store for Optuna Dashboard and MLflow."""
