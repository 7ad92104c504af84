"""The SQL tables that are the truth, and the Optuna and MLflow views derived from them."""
