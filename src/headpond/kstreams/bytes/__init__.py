"""The bytes of Kafka Streams' window stores: headers, values, keys. No I/O."""
