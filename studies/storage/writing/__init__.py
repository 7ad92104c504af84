"""Changes become rows, in one transaction each."""
