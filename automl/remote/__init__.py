"""`automl --server URL`: runs commands against a service, and prints the results."""
