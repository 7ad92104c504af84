"""Workers: they take jobs from the queue and run each in a process of its own."""
