"""Built-in tasks, one file each: adding a file adds a task, under the file's name."""
