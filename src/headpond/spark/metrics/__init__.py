"""What a run measures, and where that goes."""
