"""Steps from a spec to a finished study, shared by `launch`, `resume`, workers and Python's `automl.launch`."""
