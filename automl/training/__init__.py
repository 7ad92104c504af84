"""Single trainings: `automl train` and `automl compare`."""
