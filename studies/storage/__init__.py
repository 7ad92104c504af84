"""The store: SQL tables, which hold the truth about studies, and copies for Optuna and MLflow (views)."""
