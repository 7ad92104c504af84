"""The commands of `automl`, by what they are about; `automl.cli` gathers them."""
