"""Views: copies of a study for Optuna Dashboard and MLflow, which can be built anew."""
