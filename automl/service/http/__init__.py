"""The service's HTTP interface: the app, who may ask, routes, and bodies of requests."""
