"""Training functions with libraries that drive the training loop themselves, one file for each library."""
