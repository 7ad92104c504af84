"""Adapters between this project and two other search libraries: Optuna and Ray Tune."""
