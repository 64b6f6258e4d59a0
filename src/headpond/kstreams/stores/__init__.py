"""Window stores as Kafka Streams has them, in memory and on RocksDB, with the layers of KIP-1300."""
