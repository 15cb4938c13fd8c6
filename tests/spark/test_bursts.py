"""`celeriac burst` as a user runs it, on a job that is far behind: Spark works two partitions off, others go on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipeline.cli.main import run_command
from tests.e2e.bursting import FIRST, SECONDS, Story
from tests.e2e.chaos import Site, wait_until

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def told(
    site: Site, redis_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """What another command says, and its code: in this process, in the folder of the story."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with monkeypatch.context() as patch:
            patch.chdir(site.root / "work")
            capsys.readouterr()
            code = run_command([*arguments, "--redis", redis_url])
        return code, *capsys.readouterr()

    return run


def test_two_partitions_are_worked_off_and_handed_back_while_the_others_go_on(
    site: Site, redis_url: str, told: Callable[..., tuple[int, str, str]]
) -> None:
    with Story(site, redis_url) as story:
        burst = story.burst()
        wait_until(lambda: story.operation is not None, "it has begun")
        code, _, said = told("burst", "j", "flow.py", "--behind", "1")
        assert code == 2
        assert "job 'j' is busy: burst of 2 partitions" in said

        story.wait_for_spark()
        others = [story.part(number).taken for number in (2, 3)]
        assert all(part.backlog for part in map(story.part, range(4)))
        _, shown, _ = told("status", "j")
        assert "operation burst of 2 partitions, since" in shown
        assert "phase bursting" in shown
        wait_until(lambda: [story.part(n).taken for n in (2, 3)] > others, "the others grow")
        operation = story.operation
        assert operation is not None
        story.go()
        out = story.end(burst, 0)

        # Each is back, and stands at its cut: nothing has come since.
        assert [story.part(number).owner for number in (0, 1)] == ["w0", "w0"]
        rows = {line.split()[0]: line.split() for line in out.splitlines() if line.startswith("2.")}
        assert {name: (row[3], row[4]) for name, row in rows.items()} == {
            name: (cut, cut) for name, cut in operation.about.cuts.items()
        }
        assert [f"{story.part(number).position}" for number in (0, 1)] == [
            operation.about.cuts[f"2.{number}"] for number in (0, 1)
        ]
        assert sum(story.part(number).taken for number in (0, 1)) == sum(story.part(number).head for number in (0, 1))
        past = story.facts().record.operations[-1]
        assert (past.about.kind, past.outcome) == ("burst", "done")
        assert "on Spark" in out
        _, moves, _ = told("moves", "j")
        assert moves.count("Spark works on their backlog") == 2
        assert moves.count("Spark has done its part of their backlog") == 2
        assert "forced" not in moves.replace("0 of them forced", "")

        code, again, _ = told("burst", "j", "flow.py", "--behind", str(FIRST * 40))
        assert code == 0
        assert "nothing to do" in again
        story.finish()
        site.assert_clean("flow.py", "out", "go", "more")


def test_what_the_most_workers_would_need_too_long_for_is_burst_by_the_autoscaler(
    site: Site, redis_url: str, told: Callable[..., tuple[int, str, str]]
) -> None:
    with Story(site, redis_url, workers=("--autoscale", "1..1", "--burst-behind", "10")) as story:
        wait_until(lambda: story.operation is not None, "a burst begins by itself", SECONDS)
        operation = story.operation
        assert operation is not None
        assert (operation.about.kind, operation.about.by) == ("burst", "the autoscaler")

        wait_until(lambda: any(owner.endswith(".spark") for owner in story.run.owners()), "Spark works", SECONDS)
        story.go()
        wait_until(lambda: bool(story.facts().record.operations), "it is over", SECONDS)

        assert story.facts().record.operations[-1].outcome == "done"
        _, shown, _ = told("autoscale", "j")
        assert "stays 1  burst: " in shown
        assert "with the most workers: Spark is to work off their backlog" in shown
        story.finish()
        site.assert_clean("flow.py", "out", "go", "more")
