"""Savepoints: a job at one instant as Parquet tables, and new jobs made from them. See docs/savepoints.md."""
