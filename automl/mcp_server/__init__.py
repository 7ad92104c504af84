"""Tools for AI agents (Model Context Protocol): studies on a budget, and measurements of DDP on this machine."""
