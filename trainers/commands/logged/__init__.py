"""Folder that comes first in a program's PYTHONPATH, so that Python imports its `sitecustomize` at the start."""
