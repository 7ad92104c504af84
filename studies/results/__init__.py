"""Results of a study: fronts, hypervolume, recommendation, importance of parameters."""
