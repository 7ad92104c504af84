"""Pools of devices on which trials train: a Ray cluster, or a simulation that replays learning curves."""
