"""Bytes to values and back: no Spark, no AWS client, no clock, no I/O."""
