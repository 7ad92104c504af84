"""What may vary in a search: parameters and the tree they form. Standard library only."""
