"""What a task or a training function is, and how it is loaded."""
