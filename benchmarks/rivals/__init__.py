"""The contestants of turnaround.py beside ours; each is a program that writes its times to a file."""
