"""Jobs on a lake beside the stream: optimize, rebuild, bootstrap, catch up, requeue, redact."""
