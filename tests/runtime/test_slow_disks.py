"""Files on a disk that takes its time: it costs each step some, and steps are no smaller for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline import Pipeline, read, write
from tests.runtime.harness import HandClock, LocalJob

SINKS = 5
RECORDS = 3_000


def filed(folder: Path) -> Pipeline:
    flow = Pipeline("filed")
    source = flow.source(read.producer(), name="in")
    for number in range(SINKS):
        source.sink(write.jsonl(folder / f"out-{number}"), name=f"out_{number}")
    return flow


def test_steps_grow_though_each_waits_for_a_slow_disk(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, fsync = HandClock(), os.fsync

    def slow(handle: int) -> None:
        clock.now += 0.02  # a hard disk, or a volume on a network
        fsync(handle)

    with LocalJob(redis_url, filed(tmp_path), partitions=1, clock=clock) as job:
        job.assign()
        monkeypatch.setattr(os, "fsync", slow)
        job.send([{"number": number} for number in range(RECORDS)], entry_records=100)
        before = len(job.scripts["w0"].calls)
        job.run_until_idle()

        steps = job.scripts["w0"].calls[before:].count("commit")
        assert job.meta((0, 0))["taken"] == str(RECORDS)
        assert steps < 60
