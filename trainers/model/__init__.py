"""Model and optimizer: DDP, sharding, precision, learning rate."""
