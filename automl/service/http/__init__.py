"""HTTP interface of the service: application, gate, routes, and request bodies."""
