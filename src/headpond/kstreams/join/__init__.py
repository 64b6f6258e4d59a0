"""The windowed stream-stream join: by the record on stores, by the batch on Arrow."""
