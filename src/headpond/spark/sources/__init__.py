"""Spark sources: `kinesis`, `headpond-archive`, and both with changes decoded where they are read."""
