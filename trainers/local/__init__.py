"""Trains one configuration without a study, on this machine or under torchrun."""
