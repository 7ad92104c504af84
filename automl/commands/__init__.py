"""The commands of `automl`: one file for each, with its options and help text; `automl.cli` loads them."""
