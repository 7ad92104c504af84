"""Pages of the service: templates, and what fills them."""
