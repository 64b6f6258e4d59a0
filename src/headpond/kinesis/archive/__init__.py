"""Kinesis records in files, one JSON object a line."""
