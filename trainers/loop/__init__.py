"""Trains a task epoch by epoch: training steps, evaluation, metrics."""
