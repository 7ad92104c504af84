"""One training without a study, on this machine or under torchrun."""
