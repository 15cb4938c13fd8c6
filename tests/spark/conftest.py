"""One Spark session for all Spark tests."""

from __future__ import annotations

import os
from typing import Any

import pytest

from pipeline.spark.session import spark_session
from pipeline.spark.settings import SETTINGS_VARIABLE
from tests import jvm


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A session with two cores and four attempts at a task."""
    os.environ["JAVA_TOOL_OPTIONS"] = jvm.options()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SETTINGS_VARIABLE, jvm.PYTHON)
        return spark_session("local[2,4]", tmp_path_factory.mktemp("spark") / "jvm.log")
