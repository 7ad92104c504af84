"""The commands of `automl`, one file per command; `automl.cli` loads them."""
