"""What several tests use: studies in virtual time, made-up curves, the golden record."""
