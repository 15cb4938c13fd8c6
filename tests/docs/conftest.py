"""A story with a folder, processes and a Redis of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.story import Story
from tests.e2e.chaos import Site


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    with Story(Site(tmp_path)) as story:
        yield story
