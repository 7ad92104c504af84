"""Trains one trial: hyperparameters in, measurements out. `protocol` and `contract.task` do not import torch."""
