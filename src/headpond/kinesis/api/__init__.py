"""The calls that the rest of the room makes of Kinesis: client, settings, retries, errors, rate limits."""
