"""State, dead letters, savepoints and jobs as frames; only the keys of a condition are fetched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pipeline.embedded.redis import EmbeddedRedis  # noqa: E402
from pipeline.errors import LetterError, ReadingError  # noqa: E402
from pipeline.savepoints.export import Export  # noqa: E402
from pipeline.spark import register  # noqa: E402
from pipeline.spark.datasource.tables import keys_of  # noqa: E402
from tests.runtime.harness import LocalJob  # noqa: E402
from tests.spark.frames import a_job, fault_of, loaded  # noqa: E402

pytestmark = pytest.mark.timeout(180)
