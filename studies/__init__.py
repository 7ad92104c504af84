"""Studies: searches of many trials under one budget, with their spec, costs, devices, storage and controller."""
