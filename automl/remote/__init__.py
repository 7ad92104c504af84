"""`automl --server URL`: the same commands against a service; output is made here from the records it sends."""
