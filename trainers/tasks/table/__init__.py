"""Parts of the task `tabular`."""
