"""The streaming query that works on inboxes of a live job: what it takes, and how Spark is told of it."""
