"""Prepares a model and its optimizer for training: DDP, sharding, precision, learning rate."""
