"""What is done with a study that a store holds: open, stop, enqueue, export, report."""
