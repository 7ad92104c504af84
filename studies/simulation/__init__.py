"""Simulated studies, which replay recorded learning curves in virtual time."""
