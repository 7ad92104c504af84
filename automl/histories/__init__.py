"""Searches of other tools as studies of the store: a reader for each source, their names and units in ours."""
