"""Web pages of the service: templates and their data."""
