"""The search: which configuration is next, and which trials continue, by our own or Optuna's methods."""
