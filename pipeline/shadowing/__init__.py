"""A new version of a pipeline beside the job that runs: fed with the same input, compared, and promoted or dropped."""
