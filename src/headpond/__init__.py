"""headpond keeps tables in step with Kinesis change streams, on Spark, from Python."""

__version__ = "0.1.0"
