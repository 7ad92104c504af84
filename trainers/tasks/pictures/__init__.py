"""Parts of the task `vision`."""
