"""The windowed join on Spark."""
