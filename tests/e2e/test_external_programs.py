"""The examples with external programs, as they are and under kills, and a program that is not there."""

from __future__ import annotations

import random
import re
from collections import Counter
from contextlib import suppress
from csv import DictReader
from pathlib import Path

import psutil

from tests.e2e.chaos import Run, Site, a_chance, moments
from tests.e2e.references import EXAMPLES


def expected_of(folder: Path) -> tuple[list[str], dict[str, int]]:
    """(the lines with a problem, their numbers taken out; service -> how many)."""
    lines = [line for path in sorted(folder.iterdir()) for line in path.read_text().splitlines()]
    plain = [re.sub(r"(order|user) \d+", r"\1 #", line) for line in lines if re.search(" (WARN|ERROR) ", line)]
    return plain, dict(Counter(line.split()[1] for line in plain))


def written(folder: Path, pattern: str) -> list[str]:
    return [line for path in sorted(folder.glob(pattern)) for line in path.read_text().splitlines()]


def services(folder: Path) -> dict[str, int]:
    rows = [row for path in folder.glob("part-*") for row in DictReader(path.read_text().splitlines())]
    assert len({row["service"] for row in rows}) == len(rows), "a service came twice"
    return {row["service"]: int(row["problems"]) for row in rows}


def write_logs(folder: Path, chance: random.Random, files: int, lines: int) -> None:
    folder.mkdir()
    for number in range(files):
        rows = (
            f"2024-03-04T08:00:00Z {chance.choice(['mail', 'search', 'checkout'])} "
            f"{chance.choice(['INFO', 'WARN', 'ERROR'])} order {number}{row} of user {chance.randrange(100)}"
            for row in range(lines)
        )
        (folder / f"{number}.log").write_text("\n".join(rows) + "\n")


def test_of_three_lines_two_say_hi(site: Site) -> None:
    run = site.start(str(EXAMPLES / "hello.py"))
    run.finish()

    assert sorted(written(run.folder / "out/hello", "part-*")) == ["hi world", "say hi"]
    site.assert_clean("out")


def test_logs_as_they_are_equal_the_standard_library(site: Site) -> None:
    plain, counts = expected_of(EXAMPLES / "data/logs")

    run = site.start(str(EXAMPLES / "logs.py"))
    run.finish()

    assert sorted(written(run.folder / "out/problems", "part-*")) == sorted(plain)
    assert services(run.folder / "out/services") == counts
    site.assert_clean("out")


def kill_a_program(run: Run, chance: random.Random) -> None:
    """SIGKILL for one of the programs that run in the workers, if there is one right now."""
    found: list[psutil.Process] = []
    for name in ("w0", "w1"):
        with suppress(psutil.NoSuchProcess):
            # One that still is called as its worker is being started.
            found += [each for each in run.child(name).children() if not each.name().startswith("celeriac")]
    if found:
        program = chance.choice(found)
        with suppress(psutil.NoSuchProcess):
            print(f"kill -9 {program.name()} pid={program.pid}")
            program.kill()


def test_logs_equal_the_standard_library_whoever_is_killed(site: Site) -> None:
    chance = a_chance()
    write_logs(site.root / "logs_in", chance, files=4, lines=15_000)
    plain, counts = expected_of(site.root / "logs_in")
    run = site.start(str(EXAMPLES / "logs.py"), "--workers", "2", LOGS=str(site.root / "logs_in"))

    for number, moment in enumerate(moments(chance, 4 * 15_000, 6)):
        run.wait_for_taken(moment)
        # A third worker that is killed with the same record in hand gives it up.
        if number < 4:
            kill_a_program(run, chance)
        else:
            run.kill_one_of(chance, "w0", "w1")
    run.finish()

    assert Counter(written(run.folder / "out/problems", "part-*")) == Counter(plain)
    assert services(run.folder / "out/services") == counts
    site.assert_clean("out")


def test_a_program_that_is_not_there_is_told_before_anything_starts(site: Site) -> None:
    site.write(
        "from pipeline import Pipeline, read, write\n"
        'flow = Pipeline("missing")\n'
        'flow.source(read.iterable(["a"])).external("no-such-tool", name="tool").sink(write.console())\n'
    )

    run = site.start("flow.py")
    run.finish(code=3)

    assert "operator 'tool' needs the program 'no-such-tool', which is not here" in run.said()
    assert "hint: install it, or correct PATH" in run.said()
    site.assert_clean("flow.py")


def test_a_program_sees_the_end_of_its_input_when_the_job_is_done(site: Site) -> None:
    site.write(
        "import sys\n"
        "from pipeline import Pipeline, read, write\n"
        'program = \'import sys; [print("[1]", flush=True) for _ in sys.stdin]; open("ended", "w").close()\'\n'
        'flow = Pipeline("end")\n'
        'flow.source(read.iterable(["a", "b"])).external([sys.executable, "-c", program]).sink(write.jsonl("out"))\n'
    )

    run = site.start("flow.py", "--workers", "1")
    run.finish()

    assert (run.folder / "ended").exists()
    site.assert_clean("flow.py", "out", "ended")
