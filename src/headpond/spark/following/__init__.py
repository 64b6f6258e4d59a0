"""Follow a change stream: one streaming query that keeps the tables of a lake in step."""
