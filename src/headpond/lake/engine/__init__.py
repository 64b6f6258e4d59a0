"""How rows of a Delta table are replaced: looked up by key, planned per file, written, committed."""
