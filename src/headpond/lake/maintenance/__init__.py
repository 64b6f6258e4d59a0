"""Jobs on a lake beside the stream: optimize, repartition, bootstrap, catch up, requeue, redact."""
