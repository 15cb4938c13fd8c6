"""Setups that break under a running job, or never fitted: a file that is gone, another version, too few rights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli.main import run_command
from pipeline.plan import PROTOCOL
from pipeline.store import keys
from pipeline.store.connection import connect
from tests.e2e.chaos import Sequence, Site, a_chance, moments, wait_until
from tests.runtime.harness import LocalJob
from tests.runtime.test_dead_letters import flow


@pytest.mark.parametrize("what", ["gone", "broken"])
def test_a_file_that_is_gone_or_broken_under_a_running_job_is_named_and_put_back_it_goes_on(
    site: Site, what: str
) -> None:
    chance, sequence = a_chance(), Sequence(count=3_000)
    site.write(sequence.text)
    run = site.start("flow.py", "--workers", "1")
    run.wait_for_taken(moments(chance, sequence.taken, 1, (0.02, 0.1))[0])

    path = run.folder / "flow.py"
    if what == "gone":
        path.unlink()
    else:
        path.write_text(sequence.text + "\ndef broken(:\n")
    run.kill("w0")
    told = {"gone": "flow.py", "broken": "invalid syntax"}[what]
    wait_until(lambda: told in run.log("w0").partition("error: ")[2], "the new worker says what is wrong")
    assert "Traceback" not in run.log("w0").partition("error: ")[2]
    site.write(sequence.text)
    run.finish()

    sequence.check(run.folder / "out")


def a_worker(url: str, folder: Path) -> subprocess.CompletedProcess[str]:
    variables = {"CELERIAC_REDIS": url, "CELERIAC_JOB": "j", "CELERIAC_WORKER": "w0", "CELERIAC_PIPELINE": "flow.py"}
    command = [sys.executable, "-m", "stages.main"]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), **variables}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_a_worker_of_another_version_is_refused_with_both_versions(redis_url: str, tmp_path: Path) -> None:
    with LocalJob(redis_url, flow()) as job:
        job.is_tampered = True
        other = job.plan.encode().replace(b'"protocol":%d' % PROTOCOL, b'"protocol":99')
        job.client.hset(keys.job("j"), "plan", other)

        worker = a_worker(redis_url, tmp_path)

        job.client.flushall()
    assert worker.returncode == 3
    assert worker.stderr.startswith(f"error: the job speaks protocol 99, this program {PROTOCOL}\nhint: run it with")


def test_a_worker_whose_job_is_damaged_says_where(redis_url: str, tmp_path: Path) -> None:
    with LocalJob(redis_url, flow()) as job:
        job.is_tampered = True
        job.client.hset(keys.job("j"), "made_at", "yesterday")

        worker = a_worker(redis_url, tmp_path)

        job.client.flushall()
    assert worker.returncode == 3
    assert "error: celeriac:{j}:job, the record of the job, cannot be read: the field 'made_at'" in worker.stderr
    assert "Traceback" not in worker.stderr


def test_a_database_that_the_server_does_not_have_is_told(redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = run_command(["list", "--redis", redis_url.replace("db=0", "db=9999")])

    said = capsys.readouterr().err
    assert code == 3
    assert "this Redis has no database of that number: DB index is out of range" in said
    assert "hint: " in said


def test_a_run_on_a_redis_with_too_few_rights_names_what_is_missing_and_leaves_nothing(
    site: Site, redis_url: str
) -> None:
    site.write(Sequence(count=10).text)
    with connect(redis_url) as admin:
        admin.execute_command("ACL", "SETUSER", "weak", "reset", "on", ">secret", "~celeriac:*", "&*", "+@all", "-xadd")
        run = site.start("flow.py", "--workers", "1", "--redis", redis_url.replace("unix://", "unix://weak:secret@"))
        run.finish(code=3)
        admin.execute_command("ACL", "DELUSER", "weak")
        assert admin.keys("*") == []

    assert "this Redis user may not run our scripts: it lacks XADD" in run.said()
    assert "Traceback" not in run.said()
    assert "secret" not in run.said()
