"""Parts of `task_accuracy.py`: tables that packages ship, searches to compare with, and scores."""
