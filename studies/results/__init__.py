"""What a study found: fronts, hypervolume, recommendation, importance."""
