"""Tools for programs that speak the Model Context Protocol: studies on a budget, and DDP measured here."""
