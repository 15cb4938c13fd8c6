"""The registry of a job's versions, and what its workers are told to run."""

from __future__ import annotations

import msgspec
import pytest
from bench import Bench

from pipeline.errors import ForeignData, UnknownJob
from pipeline.store import keys
from pipeline.store.scripts import Scripts
from pipeline.store.versions import VersionStore
from pipeline.versions import MOST_VERSIONS, Version, Wanted, wanted_for


def a_version(code: str = "c1", **more: str) -> Version:
    return msgspec.structs.replace(Version("run", code, "f", "flow.py", "me@here"), **more)


def test_versions_are_kept_in_order_with_their_time_and_the_oldest_go(bench: Bench) -> None:
    store = VersionStore(Scripts(bench.client))
    for number in range(MOST_VERSIONS + 3):
        store.add("j", a_version(f"c{number}"), submitted=False)

    found = store.versions("j")

    assert [each.code for each in found] == [f"c{number}" for number in range(3, MOST_VERSIONS + 3)]
    assert found[0].at_ms > 0
    assert [each.at_ms for each in found] == sorted(each.at_ms for each in found)


def test_what_a_worker_is_to_run_is_said_of_it_or_of_all(bench: Bench) -> None:
    store = VersionStore(Scripts(bench.client))
    store.add("j", a_version(), submitted=True, wants=Wanted("c1"))
    store.want("j", "w0", Wanted("c2", "/x/b.py:flow"))

    rollout = store.rollout("j")

    assert wanted_for(rollout, "w0") == Wanted("c2", "/x/b.py:flow")
    assert wanted_for(rollout, "w1") == Wanted("c1")
    assert bench.jobs.read("j").is_submitted
    store.want("j", "w0", None)
    assert wanted_for(store.rollout("j"), "w0") == Wanted("c1")
    store.want("j", "w0", Wanted("c2"))
    store.want("j", "*", Wanted("c3"))
    assert store.rollout("j") == {"*": Wanted("c3")}


def test_an_upgrade_leaves_who_publishes_and_a_run_takes_over(bench: Bench) -> None:
    store = VersionStore(Scripts(bench.client))
    store.add("j", a_version(), submitted=True, wants=Wanted("c1"))
    store.add("j", a_version("c2"))
    assert (bench.jobs.read("j").is_submitted, store.rollout("j")) == (True, {"*": Wanted("c1")})

    store.add("j", a_version("c3"), submitted=False)

    assert (bench.jobs.read("j").is_submitted, store.rollout("j")) == (False, {})


def test_a_job_that_is_gone_gets_no_version(bench: Bench) -> None:
    store = VersionStore(Scripts(bench.client))
    with pytest.raises(UnknownJob):
        store.add("k", a_version())
    with pytest.raises(UnknownJob):
        store.want("k", "*", Wanted("c"))
    assert bench.client.exists(keys.versions("k"), keys.rollout("k")) == 0


@pytest.mark.parametrize("name", ["versions", "rollout"])
def test_what_is_no_key_of_ours_changes_nothing(bench: Bench, name: str) -> None:
    key = getattr(keys, name)("j")
    bench.client.set(key, "mine")

    with pytest.raises(ForeignData):
        VersionStore(Scripts(bench.client)).add("j", a_version(), submitted=True, wants=Wanted("c"))

    assert not bench.jobs.read("j").is_submitted
    assert bench.client.get(key) == b"mine"
    bench.client.delete(key)
