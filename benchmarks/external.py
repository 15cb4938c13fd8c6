"""Lines per second through external programs: the runners alone, and a whole job of one worker.

    python benchmarks/external.py
    python benchmarks/external.py --lines 3000000 --programs none python

Every answer is checked. This file is also the pipeline that the job runs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Final

sys.path.insert(0, str(Path(__file__).parent.parent))

from pipeline import Pipeline, read, write
from pipeline.graph import External
from pipeline.programs.runners import Programs
from pipeline.records import Batch

LINE: Final = "2024-03-04T08:00:00Z checkout ERROR payment of order {} failed: card declined"
MEASURE_SECONDS: Final = 2.0
BATCHES: Final = (1, 100, 8_000)

_PYTHON_JSON: Final = """
import sys
for line in sys.stdin:
    print(f"[{line[:-1]}]", flush=True)
"""
_PYTHON_FORWARD: Final = """
import sys
for key in sys.stdin:
    print("forward", key + sys.stdin.readline(), sep="\\n", end="", flush=True)
"""

PROGRAMS: Final = {
    "sed": External("sed", ("lines",), ("stdbuf", "-oL", "sed", "s/.*/[&]/")),
    "python": External("python", ("lines",), (sys.executable, "-c", _PYTHON_JSON)),
    "forward": External("forward", ("lines",), (sys.executable, "-c", _PYTHON_FORWARD), "forward"),
    "grep": External("grep", ("lines",), ("grep", "ERROR"), "lines"),
}


def the_pipeline(program: str) -> Pipeline:
    """Lines of a file -> the program, or "none" -> a file."""
    pipeline = Pipeline("bench_external")
    stream = pipeline.source(read.text(os.environ.get("BENCH_LINES", "lines.txt"), reader="local"), name="lines")
    if program != "none":
        node = PROGRAMS[program]
        stream = stream.external(node.argv, protocol=node.protocol, name="program")  # type: ignore[call-overload]
    stream.sink(write.jsonl("out"), name="out")
    return pipeline


flow = the_pipeline(os.environ.get("BENCH_PROGRAM", "none"))


def runner_rate(node: External, size: int) -> float:
    """Lines per second of the runner alone, in batches of so many."""
    programs = Programs([node])
    run, batch = programs.runners[node.name], Batch([LINE.format(number) for number in range(size)])
    run(batch)
    lines, started = 0, perf_counter()
    while (seconds := perf_counter() - started) < MEASURE_SECONDS:
        if len(run(batch)) != size:
            sys.exit(f"{node.name} lost lines")
        lines += size
    programs.close()
    return lines / seconds


def job_seconds(program: str, lines: int) -> float:
    """A whole `celeriac run` with one worker, from its start to the published result."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "lines.txt")
        source.write_text("".join(LINE.format(number) + "\n" for number in range(lines)))
        told = {**os.environ, "BENCH_LINES": str(source), "BENCH_PROGRAM": program}
        command = [sys.executable, "-m", "pipeline.cli.main", "run", __file__, "--workers", "1"]
        started = perf_counter()
        subprocess.run(command, cwd=folder, env=told, check=True, stderr=subprocess.DEVNULL)
        seconds = perf_counter() - started
        written = sum(len(path.read_bytes().splitlines()) for path in Path(folder, "out").glob("part-*"))
    if written != lines:
        sys.exit(f"{written} of {lines} lines were written")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1_500_000)
    parser.add_argument("--programs", nargs="+", choices=["none", *PROGRAMS], default=["none", *PROGRAMS])
    options = parser.parse_args()
    for node in (node for name, node in PROGRAMS.items() if name in options.programs):
        rates = ", ".join(f"{runner_rate(node, size):,.0f} in batches of {size}" for size in BATCHES)
        print(f"{node.name} ({node.protocol}), lines/s: {rates}")
    for program in options.programs:
        some, many = job_seconds(program, 1_000), job_seconds(program, options.lines)
        rate = (options.lines - 1_000) / (many - some)
        print(f"a job with {program}: {many:.1f} s for {options.lines:,} lines, {rate:,.0f} lines/s without its start")


if __name__ == "__main__":
    main()
