"""All of Spark: the session, the source and the sinks that it carries. PySpark is imported nowhere else."""
