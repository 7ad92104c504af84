"""Parts of `serving.py`: a model to serve, servers of it, and clients that ask them."""
