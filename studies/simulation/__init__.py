"""Studies over recorded learning curves in virtual time, and how good they were."""
