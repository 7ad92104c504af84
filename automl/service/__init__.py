"""Studies of a team: workers that run the queue's studies, and an HTTP service for people and programs."""
