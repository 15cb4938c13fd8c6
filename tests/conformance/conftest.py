"""The session of the Spark tests, for the suite that runs on both engines."""

from __future__ import annotations

from tests.spark.conftest import spark

__all__ = ["spark"]
