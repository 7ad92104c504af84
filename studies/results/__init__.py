"""Results of a study: best models, hypervolume, recommendation and importance of parameters."""
