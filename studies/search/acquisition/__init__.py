"""Values of configurations for the search: hypervolume improvement per dollar, feasibility, stagnation, user priors."""
