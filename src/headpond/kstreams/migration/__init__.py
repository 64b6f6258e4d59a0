"""Store directories that Kafka Streams left: read, and rewritten in another format."""
