"""The Spark engine in batch: a whole pipeline on a Spark session, to its end. `engine.run_bulk` is the way in."""
