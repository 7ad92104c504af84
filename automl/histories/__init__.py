"""Imports runs of other tools as studies: a reader for each tool, and a translation to the spec."""
