"""What a target table keeps: the newest version, every version, a log of changes, documents."""
