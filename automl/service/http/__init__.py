"""HTTP interface of the service: application, access control, routes, and request bodies."""
