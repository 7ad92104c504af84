"""Single trainings: the commands `automl train` and `automl compare`."""
