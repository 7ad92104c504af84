"""Models learned from trials: learning curves, prices, sizes, failures, earlier studies."""
