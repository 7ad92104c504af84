"""Files that let clusters run studies: SLURM, Kubernetes with KubeRay or Kubeflow, and compose."""
