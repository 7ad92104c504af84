"""What a configuration is worth: hypervolume improvement, dollars, feasibility, stagnation, user priors."""
