"""Studies of a team: workers that run them from the queue, and the HTTP service for people and programs."""
