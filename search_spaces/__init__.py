"""Search spaces: parameters and the tree that they form. Standard library only."""
