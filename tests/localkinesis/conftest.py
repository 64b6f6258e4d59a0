"""What tests of the local Kinesis share with those of what reads and writes it."""

from tests.kinesis.conftest import clock, kinesis

__all__ = ["clock", "kinesis"]
