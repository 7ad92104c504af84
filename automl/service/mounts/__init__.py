"""Other web applications inside the service: Optuna Dashboard and MLflow."""
