"""Workers: they take jobs from the queue, and run each job in a process."""
