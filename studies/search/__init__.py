"""What a free slot does and whether a trial goes on: Optuna samplers and pruners as one policy."""
