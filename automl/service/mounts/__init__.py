"""Other web applications that run inside the service: Optuna Dashboard and MLflow."""
