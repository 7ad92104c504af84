"""Parts of the task `tabular`, which learns from tables."""
