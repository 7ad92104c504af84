"""Built-in tasks, one file for each. A new file adds a task with the file's name."""
