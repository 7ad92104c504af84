"""Studies, many trials under one budget: spec, search, money, gangs, store and the controller that drives them."""
