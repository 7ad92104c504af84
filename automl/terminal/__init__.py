"""What people read and type in a terminal: options, exit codes, texts, tables and live progress."""
