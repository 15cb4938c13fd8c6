"""A run that reaches its Redis in two ways, of which the better one ends under load: every key stays in sequence."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.embedded.redis import EmbeddedRedis
from tests.e2e.chaos import Sequence, Site, wait_until
from tests.proxy import CuttingProxy

SEQUENCE = Sequence(keys=20, count=2_000)


@pytest.mark.timeout(240)
def test_when_the_preferred_way_to_redis_ends_all_processes_go_on_by_the_other_one(site: Site, tmp_path: Path) -> None:
    site.write(SEQUENCE.text)
    server = EmbeddedRedis.start(tmp_path / "redis")
    with server, CuttingProxy(Path(server.url.removeprefix("unix://").partition("?")[0])) as spare:
        with CuttingProxy(Path(server.url.removeprefix("unix://").partition("?")[0])) as first:
            run = site.start("flow.py", "--workers", "2", CELERIAC_REDIS=f"{first.url},{spare.url}")
            run.wait_for_taken(SEQUENCE.taken * 0.1)
            assert spare.connections == 0
            assert first.connections > 4
        wait_until(lambda: spare.connections > 4, "they come by the other way")
        run.finish(seconds=120.0)
        SEQUENCE.check(run.folder / "out")
