"""Studies over recorded learning curves in virtual time, and the quality of their results."""
