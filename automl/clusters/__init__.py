"""Writes the files that SLURM, Kubernetes (with KubeRay or Kubeflow) and compose need to run studies."""
