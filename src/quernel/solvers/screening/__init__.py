"""Newton on the few rows whose side is uncertain, verified on all rows."""
