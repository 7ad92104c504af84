"""Prices, charges and the budget."""
