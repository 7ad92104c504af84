"""The SQL tables, which are authoritative, and the Optuna and MLflow views derived from them."""
