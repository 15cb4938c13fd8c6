"""The worker that is a Spark streaming query: its tasks run the same slices as a Celery worker does."""
