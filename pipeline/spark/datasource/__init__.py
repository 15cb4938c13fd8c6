"""The Spark data source `pipeline`, for any PySpark user: results, state and letters as frames, and rows into a job."""
