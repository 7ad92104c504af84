"""Steps from a spec to a finished study."""
