"""The commands of `automl`, one file per command with its options and help text; `automl.cli` loads them."""
