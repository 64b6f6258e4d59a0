"""Aurora DSQL change records: bytes to messages, messages to typed changes, chunks put together. No I/O."""
