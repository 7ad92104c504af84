"""Prices, the ledger of charges, and the budget, which reserves the possible cost of running trials."""
