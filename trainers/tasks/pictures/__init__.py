"""Parts of the task `vision`, which classifies images."""
