"""What the Python API gives beside the study itself: tables, figures, the best model, and notebooks."""
