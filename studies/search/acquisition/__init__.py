"""Values of configurations: hypervolume improvement per dollar, feasibility, stagnation, user priors."""
