"""A team's studies: workers that run them from the queue, and the service that people and programs ask over HTTP."""
