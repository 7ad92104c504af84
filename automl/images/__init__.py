"""Exported models as images: a folder that `docker build`, a Hugging Face Space and Kubernetes read."""
