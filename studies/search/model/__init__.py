"""Models that learn from trials: learning curves, costs, sizes, failures and earlier studies."""
