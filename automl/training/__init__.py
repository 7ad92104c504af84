"""Trainings without a study: `automl train` and `automl compare`."""
