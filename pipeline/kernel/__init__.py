"""The partition kernel: what both carriers (Celery live, Spark in bulk) run. Knows no Redis, Celery or Spark."""
