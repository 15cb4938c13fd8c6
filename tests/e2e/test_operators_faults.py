"""What an operator may do to a running job by mistake is refused or handled, each with a message that says what."""

from __future__ import annotations

import signal

from tests.e2e.chaos import Sequence, Site, a_chance, moments, wait_until

ENDLESS = """
from pipeline import Pipeline, read, write

flow = Pipeline("endless")
flow.source(read.producer(), name="in").sink(write.jsonl("out"), name="result")
"""


def test_of_two_runs_that_submit_one_job_at_once_one_runs_it_and_the_other_is_refused(
    site: Site, redis_url: str
) -> None:
    site.write(ENDLESS)
    options = ("--workers", "1", "--redis", redis_url, "--job-id", "twice")
    runs = [site.start("flow.py", *options), site.start("flow.py", *options)]

    wait_until(lambda: any(run.process.poll() is not None for run in runs), "one of the two is refused", 60.0)
    refused, runs_on = sorted(runs, key=lambda run: run.process.poll() is None)
    assert refused.process.returncode == 2
    wait_until(lambda: {part.owner for part in runs_on.facts().partitions} == {"w0"}, "the other one works")
    runs_on.process.send_signal(signal.SIGINT)
    runs_on.finish(code=130)

    # Both write to the same file: it holds what either of them has said.
    assert "is being run by another process: worker w0 is alive" in refused.said()
    site.assert_clean("flow.py")


def test_a_file_whose_functions_are_changed_under_a_running_job_is_noticed(site: Site) -> None:
    chance, sequence = a_chance(), Sequence(count=3_000)
    site.write(sequence.text)
    run = site.start("flow.py", "--workers", "1")
    run.wait_for_taken(moments(chance, sequence.taken, 1, (0.02, 0.1))[0])

    site.write(sequence.text + "\n# another line\n")
    wait_until(lambda: "flow.py was changed while the job runs" in run.said(), "the run says so")
    run.kill("w0")
    run.finish()

    assert run.said().count("was changed while the job runs") == 1
    sequence.check(run.folder / "out")


def test_a_file_that_defines_other_operators_is_refused_by_workers_until_it_is_put_back(site: Site) -> None:
    chance, sequence = a_chance(), Sequence(count=3_000)
    site.write(sequence.text)
    run = site.start("flow.py", "--workers", "1")
    run.wait_for_taken(moments(chance, sequence.taken, 1, (0.02, 0.1))[0])

    site.write(sequence.text.replace('name="oracle"', 'name="another"'))
    run.kill("w0")
    wait_until(lambda: "is not the pipeline that job" in run.log("w0"), "the new worker refuses it")
    site.write(sequence.text)
    run.finish()

    sequence.check(run.folder / "out")
