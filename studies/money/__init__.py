"""Prices, charges, and the budget, part of which is reserved for the possible cost of running trials."""
