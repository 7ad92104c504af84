"""Small trainings of different kinds, whose learning curves `record_curves.py` records."""
