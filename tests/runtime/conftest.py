"""What several tests of whole jobs need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pipeline.graph import SourceSpec
from tests.runtime.followed import Follow


@pytest.fixture
def follow(redis_url: str) -> Iterator[Callable[..., Follow]]:
    made: list[Follow] = []

    def make(spec: SourceSpec, **options: Any) -> Follow:
        made.append(Follow(redis_url, spec, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()
