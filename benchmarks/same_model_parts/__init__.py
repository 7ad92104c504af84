"""The same small model in each form that a trial may have."""
