"""Search policy: suggestions for free slots and decisions at rungs, from our own or Optuna's samplers and pruners."""
