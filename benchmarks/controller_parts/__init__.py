"""Parts of controller.py: gangs that take no time, and the clock by which they are paced."""
