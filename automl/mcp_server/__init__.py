"""Tools for programs that speak the Model Context Protocol: studies on a budget, and what DDP does on this machine."""
