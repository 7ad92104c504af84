"""Where trials train: on devices of a Ray cluster, or simulated from recorded learning curves in virtual time."""
