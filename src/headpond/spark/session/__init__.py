"""Starting one Spark session: Java, settings, workers, logs, shipping headpond to executors."""
