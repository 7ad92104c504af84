"""A helper of a trainable, in a module of its own that has imported `report` by name."""

from ray.tune import report


def send(error: float) -> None:
    report({"error": error})
