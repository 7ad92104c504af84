"""Tools for AI agents (Model Context Protocol): studies on a budget, and DDP on this machine."""
