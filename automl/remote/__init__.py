"""`automl --server URL`: the same commands against a service. Reads print here what the service sends as records."""
