"""From messages to the newest whole change per key: step functions over Arrow batches."""
