"""The loop over epochs of a task: training, evaluation, metrics."""
