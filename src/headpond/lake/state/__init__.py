"""The tables of `_headpond/`: quarantine, pending records, tombstones, logs."""
