"""Writes exported models as folders for `docker build`, Hugging Face Spaces and Kubernetes."""
