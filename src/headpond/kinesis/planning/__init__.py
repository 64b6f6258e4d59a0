"""Plan micro-batches over a stream: where a query starts, and where each batch ends."""
