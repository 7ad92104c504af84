"""Writes exported models as folders that `docker build`, Hugging Face Spaces and Kubernetes can use."""
