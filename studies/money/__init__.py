"""Prices, the ledger of charges, and the budget that reserves what running trials may still cost."""
