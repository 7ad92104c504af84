"""The contestants of trainer.py: one training, written for each framework as its documentation has it."""
