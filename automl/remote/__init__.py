"""`automl --server URL`: runs commands on a service, and prints the results."""
