"""Pages of the service: templates and their data."""
