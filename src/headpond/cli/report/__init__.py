"""Pages that commands write with --html: one file each, no script, nothing from elsewhere."""
