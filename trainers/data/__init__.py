"""Samples: order, sharing among ranks, streams."""
