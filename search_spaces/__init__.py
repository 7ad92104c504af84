"""Search spaces: parameters, and the tree that they form. Imports only the standard library."""
