"""Parts of the Python API beside the study itself: tables, figures, the best model, and notebooks."""
