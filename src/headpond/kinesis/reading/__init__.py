"""Read one shard from a position: pages, expired iterators, gaps, batches, lag."""
