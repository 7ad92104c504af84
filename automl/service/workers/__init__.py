"""Workers, which take jobs from the queue and run each in a separate process."""
