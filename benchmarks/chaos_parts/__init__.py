"""Parts of chaos.py: the task that is trained, the processes of the scene, and the faults."""
