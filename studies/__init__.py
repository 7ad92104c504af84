"""Many trials under one budget: the spec, the search, the money, the gangs, the store and who drives them."""
