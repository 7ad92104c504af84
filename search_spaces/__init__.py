"""Search spaces. Imports only the standard library."""
