"""Terminal interface: options, exit codes, texts, tables and live progress."""
