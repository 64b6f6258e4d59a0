"""The Spark sink `kinesis`, and removing duplicates of what it put."""
