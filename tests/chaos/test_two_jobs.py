"""Jobs side by side on one Redis, what is left of them, and how much they hold while they run."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest
import redis

from pipeline.keying import GROUPS, group_of
from pipeline.settings import Limits
from tests.e2e.chaos import ROOT, Run, Sequence, Site, a_chance, create_job, moments, wait_until

KEYS = ["", "word", "déjà vu", "🥕", *map(str, range(500)), 0, -1, 2**70, b"", b"\xff\x00", ("a", 1), ((b"x",), "y")]

HASHES = f"""
from pipeline.keying import group_of
print([group_of(key) for key in {KEYS!r}], hash("word"))
"""


def test_one_pipeline_run_twice_at_once_gives_two_whole_results(site: Site, redis_url: str) -> None:
    chance, sequence = a_chance(), Sequence(count=4_000)
    runs = []
    for folder in ("one", "two"):
        site.write(sequence.text, folder)
        runs.append(site.start("flow.py", "--workers", "2", "--redis", redis_url, folder=folder))

    for run, moment in zip(runs, moments(chance, sequence.taken, 2), strict=True):
        run.wait_for_taken(moment)
        run.kill_one_of(chance, "w0", "w1", "leader")
    jobs = [run.link[1] for run in runs]
    for run in runs:
        run.finish()

    assert jobs[0] != jobs[1]
    for run in runs:
        sequence.check(run.folder / "out")
        site.assert_clean("flow.py", "out", folder=run.folder.name)
    for number, job in enumerate(jobs):
        assert site.command("remove", job, "--redis", redis_url, folder="one").returncode == 0
        assert (number == 0) == bool(keys_of(redis_url, jobs[1]))
        assert keys_of(redis_url, job) == []
    with redis.Redis.from_url(redis_url) as client:
        assert client.keys("*") == []


def test_a_job_that_is_removed_while_it_runs_leaves_no_key(site: Site, redis_url: str) -> None:
    chance, sequence = a_chance(), Sequence()
    site.write(sequence.text)
    run = site.start("flow.py", "--workers", "2", "--redis", redis_url)
    run.wait_for_taken(moments(chance, sequence.taken, 1, (0.02, 0.4))[0])  # the command begins while it works
    job = run.link[1]

    removed = site.command("remove", job, "--force", "--redis", redis_url)
    run.finish(code=1)

    assert removed.returncode == 0, removed.stderr
    assert f"this Redis no longer knows job {job!r}: it was removed" in run.said()
    assert keys_of(redis_url, job) == []
    site.assert_clean("flow.py")


def test_a_run_that_was_killed_leaves_no_key_once_its_job_is_removed(site: Site, redis_url: str) -> None:
    chance, sequence = a_chance(), Sequence()
    site.write(sequence.text)
    run = site.start("flow.py", "--workers", "2", "--redis", redis_url)
    run.wait_for_taken(moments(chance, sequence.taken, 1)[0])
    job = run.link[1]

    run.process.kill()
    wait_until(lambda: not site.processes(), "all processes of the run have ended", 10.0)
    removed = site.command("remove", job, "--force", "--redis", redis_url)

    assert removed.returncode == 0, removed.stderr
    with redis.Redis.from_url(redis_url) as client:
        assert client.keys("*") == []
    assert [path.name for path in run.folder.iterdir()] == ["flow.py"]


def keys_of(redis_url: str, job: str) -> list[bytes]:
    """All keys that name the job, or that hold its name."""
    tag = f"{{{job}}}".encode()
    with redis.Redis.from_url(redis_url) as client:
        found = [key for key in client.keys("*") if tag in key]
        sets = [key for key in client.keys("*") if client.type(key) == b"set"]
        return found + [key for key in sets if any(tag in member for member in client.smembers(key))]


@pytest.mark.parametrize("workers", [1, 2])
def test_inboxes_stay_within_their_bound_before_a_slow_sink(site: Site, redis_url: str, workers: int) -> None:
    """With one worker, who waits for a full inbox owns it."""
    sequence = Sequence(count=1_000, work=3_000)
    limits = Limits(inbox_records=2_000, step_outputs=500, step_records=500)
    site.write(sequence.text)
    create_job(site, redis_url, "bounded", limits)
    run = site.start("flow.py", "--workers", str(workers), "--redis", redis_url, "--job-id", "bounded")

    most, has_waited = watch_inboxes(run)
    run.finish()

    assert limits.inbox_records / 2 < most <= limits.inbox_records + limits.step_outputs
    assert has_waited
    sequence.check(run.folder / "out")
    site.assert_clean("flow.py", "out")


def watch_inboxes(run: Run) -> tuple[int, bool]:
    """Until all is read: the most records that any inbox held, and whether a partition ever waited for a full one."""
    most, has_waited = 0, False

    def is_read() -> bool:
        nonlocal most, has_waited
        facts = run.facts()
        most = max(most, *(part.backlog for part in facts.partitions))
        has_waited = has_waited or any(part.ring == "w" for part in facts.partitions)
        return run.process.poll() is not None or all(part.done for part in facts.partitions)

    wait_until(is_read, "all is read", 100.0)
    return most, has_waited


def test_processes_of_any_hash_seed_agree_on_every_partition() -> None:
    answers = {}
    for seed in ("0", "1", "random"):
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", HASHES], env=environment, capture_output=True, text=True, check=True, timeout=30
        )
        groups, _, own_hash = done.stdout.strip().rpartition(" ")
        answers[own_hash] = groups

    assert len(answers) == 3
    assert set(answers.values()) == {str([group_of(key) for key in KEYS])}
    assert all(0 <= group_of(key) < GROUPS for key in KEYS)


def test_workers_of_different_hash_seeds_share_a_job(site: Site) -> None:
    """Processes of one node share a seed; those of the node that replaces it have another one."""
    chance, sequence = a_chance(), Sequence(count=4_000)
    site.write(sequence.text)
    run = site.start("flow.py", "--workers", "2")

    assert "PYTHONHASHSEED" not in psutil.Process(run.process.pid).environ()
    for moment in moments(chance, sequence.taken, 2):
        run.wait_for_taken(moment)
        run.kill("node")
    run.finish()

    sequence.check(run.folder / "out")
    site.assert_clean("flow.py", "out")
