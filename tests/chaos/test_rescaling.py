"""A job whose stages get other numbers of partitions under load, while its workers and its leader are killed."""

from __future__ import annotations

from tests.e2e.chaos import Run, Site, a_chance, wait_until
from tests.e2e.flows import PACED, check_paced

KEYS = 50


def rescale(site: Site, run: Run, stage: str, partitions: int, *options: str) -> None:
    store, job = run.link
    told = site.command("rescale", job, stage, "--partitions", str(partitions), "--redis", run.address, *options)
    assert told.returncode == 0, told.stderr
    assert store.state(job) == "running", "the story has ended too early"


def wait_for_operations(run: Run, count: int) -> None:
    def are_done() -> bool:
        run.assert_running()
        return len(run.facts().record.operations) >= count

    wait_until(are_done, f"{count} operations have ended", 60.0)


def test_partitions_go_up_and_down_under_load_and_kills_and_every_key_stays_in_order(site: Site) -> None:
    chance = a_chance()
    site.write(PACED.format(keys=KEYS))
    run = site.start("flow.py", "--workers", "2", "--partitions", "4")
    run.wait_for_taken(5_000)

    rescale(site, run, "by_key", 8, "--no-wait", "--now")
    run.kill(chance.choice(["w0", "w1"]))
    wait_for_operations(run, 1)
    rescale(site, run, "by_key", 3, "--no-wait", "--now")
    run.kill("leader")
    wait_for_operations(run, 2)
    rescale(site, run, "hop", 2)
    taken = run.taken()
    run.wait_for_taken(taken + 5_000)
    record = run.facts().record
    (run.folder / "enough").touch()
    run.finish()

    assert [(past.about.stage, past.about.before, past.about.to, past.outcome) for past in record.operations] == [
        ("by_key", 4, 8, "done"),
        ("by_key", 8, 3, "done"),
        ("hop", 4, 2, "done"),
    ]
    assert [stage.serving for stage in record.plan.stages] == [4, 2, 3]
    assert "the books balance: " in run.said()
    last = check_paced(run.folder / "out", KEYS)
    assert 3 * KEYS * last >= taken + 5_000
    site.assert_clean("flow.py", "enough", "out")


def test_a_rescaled_job_is_suspended_and_goes_on(site: Site, redis_url: str) -> None:
    site.write(PACED.format(keys=KEYS))
    arguments = ("flow.py", "--workers", "1", "--partitions", "4", "--redis", redis_url, "--job-id", "j")
    first = site.start(*arguments)
    first.wait_for_taken(2_000)
    rescale(site, first, "by_key", 7)

    suspended = site.command("suspend", "j", "--to", "savepoints", "--redis", redis_url)
    assert suspended.returncode == 0, suspended.stderr
    first.finish(code=130)
    second = site.start("flow.py", "--workers", "2", "--redis", redis_url, "--job-id", "j")
    second.wait_for_taken(sum(part.taken for part in second.facts().partitions) + 2_000)
    rescale(site, second, "by_key", 2)
    (second.folder / "enough").touch()
    second.finish()

    assert "the books balance: " in second.said()
    check_paced(second.folder / "out", KEYS)
    site.assert_clean("flow.py", "enough", "out", "savepoints")
