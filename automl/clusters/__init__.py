"""Writes files for SLURM, Kubernetes (with KubeRay or Kubeflow) and compose to run studies."""
