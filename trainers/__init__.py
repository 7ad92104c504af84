"""One trial, from parameters to measurements. Torch lives here; `protocol` and `task` do not import it."""
