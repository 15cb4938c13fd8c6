"""Word count with running counts on the Spark engine: records/s of the generic path, every count checked.

    python benchmarks/bulk.py                 # about a minute
    python benchmarks/bulk.py --words 8000000 --rounds 5 --partitions 8

A text of a Zipf-like vocabulary is split into words, and each word emits its running count into JSON Lines files, whose
rows are checked: a gap, a repeat or a swap of a word's counts ends the run. The same with final counts only, which are
checked too, has tasks count before the exchange. Another pipeline is one key for all records, as the worst skew there
is. A last one has the words one a line and wants their final counts only, which Spark
computes itself; DataFrame code that one would write by hand runs in turns with it, and both counts are checked. The
functions of the first in a loop of plain Python, before each round, say what the machine gives at that time. This file
is also the pipeline that Spark's tasks load.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING

import msgspec

sys.path.insert(0, str(Path(__file__).parent.parent))

from pipeline import Pipeline, count, itself, read, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = Path(os.environ.get("BULK_FOLDER", "/tmp/celeriac-bulk-benchmark"))
WORDS_A_LINE = 10
VOCABULARY = 50_000
SAMPLE_LINES = 40_000

flow = Pipeline("bench_bulk")
(
    flow.source(read.text(FOLDER / "text"), name="lines")
    .flat_map(str.split, name="words")
    .key_by(lambda word: word, name="by_word")
    .aggregate(count(), name="running_count")
    .sink(write.jsonl(FOLDER / "counts"), name="counts")
)

skewed = Pipeline("bench_bulk_skewed")
(
    skewed.source(read.text(FOLDER / "text"), name="lines")
    .flat_map(str.split, name="words")
    .key_by(lambda _word: "all", name="one_key")
    .aggregate(count(), name="running_count")
    .filter(lambda number: number % 1_000 == 0, name="thousands")
    .sink(write.jsonl(FOLDER / "skewed"), name="counts")
)

fused = Pipeline("bench_bulk_fused")
(
    fused.source(read.text(FOLDER / "text"), name="lines")
    .flat_map(str.split, name="words")
    .key_by(lambda word: word, name="by_word")
    .aggregate(count(), name="running_count")
    .last(name="final_count")
    .sink(write.jsonl(FOLDER / "fused"), name="counts")
)

final = Pipeline("bench_bulk_final")
(
    final.source(read.text(FOLDER / "words"), name="words")
    .key_by(itself(), name="by_word")
    .aggregate(count(), name="running_count")
    .last(name="final_count")
    .sink(write.jsonl(FOLDER / "final"), name="counts")
)

many = Pipeline("bench_bulk_many_keys")
(
    many.source(read.iterable(lambda: range(int(os.environ.get("BULK_KEYS", "1000000")))), name="numbers")
    .key_by(lambda number: number, name="by_number")
    .aggregate(count(), name="running_count")
    .last(name="final_count")
    .sink(write.jsonl(FOLDER / "many"), name="counts")
)


def write_text(folder: Path, words: int) -> int:
    """About so many words, in files of equal size; how many there are."""
    rng = random.Random(7)
    vocabulary = [f"word{number}" for number in range(VOCABULARY)]
    weights = [1 / (rank + 1) for rank in range(VOCABULARY)]
    drawn = rng.choices(vocabulary, weights, k=SAMPLE_LINES * WORDS_A_LINE)
    lines = [" ".join(drawn[at : at + WORDS_A_LINE]) for at in range(0, len(drawn), WORDS_A_LINE)]
    folder.mkdir(parents=True)
    copies = max(1, round(words / len(drawn)))
    for number in range(copies):
        (folder / f"{number:03d}.txt").write_text("\n".join(lines) + "\n")
    return copies * len(drawn)


def write_words(folder: Path, text: Path, copies: int) -> Counter[str]:
    """The words of the text one a line, so many times over; how often each is there."""
    folder.mkdir()
    found: Counter[str] = Counter()
    for path in sorted(text.glob("*.txt")):
        words = path.read_text().split()
        found.update({word: number * copies for word, number in Counter(words).items()})
        for number in range(copies):
            (folder / f"{path.stem}-{number:03d}.txt").write_text("\n".join(words) + "\n")
    return found


def plain_seconds(folder: Path) -> float:
    """CPU time of the same functions in a loop of one process: no Spark, no files written."""
    started = process_time()
    words, key_of = str.split, lambda word: word
    held: dict[str, int] = {}
    for path in sorted(folder.glob("*.txt")):
        emitted = []
        with path.open() as lines:
            for line in lines:
                for word in words(line):
                    key = key_of(word)
                    held[key] = number = held.get(key, 0) + 1
                    emitted.append((key, number))
    return process_time() - started


def check(folder: Path, words: int) -> None:
    """Every word's counts are 1, 2, 3, ... in the order of the rows."""
    reached: dict[str, int] = {}
    rows = 0
    for key, value in _rows(folder):
        if value != reached.get(key, 0) + 1:
            sys.exit(f"WRONG: {key!r} went from {reached.get(key, 0)} to {value}")
        reached[key] = value
        rows += 1
    if rows != words:
        sys.exit(f"WRONG: {words:,} words were read, {rows:,} came out")


def _rows(folder: Path) -> Iterator[tuple[str, int]]:
    decode = msgspec.json.Decoder().decode
    for path in sorted(folder.glob("part-*")):
        with path.open("rb") as file:
            for line in file:
                row = decode(line)
                yield row["key"], row["value"]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--words", type=int, default=4_000_000)
    options.add_argument("--keys", type=int, default=1_000_000, help="distinct keys in one partition")
    options.add_argument("--copies", type=int, default=10, help="how often the words are there, for final counts")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--partitions", type=int, default=4)
    options.add_argument("--master", default="local[2,4]")
    options.add_argument("--only-final", action="store_true", help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.only_final:
        compare_final(asked, FOLDER)
        return
    with tempfile.TemporaryDirectory(prefix="celeriac-bulk-") as folder:
        os.environ["BULK_FOLDER"], os.environ["BULK_KEYS"] = folder, str(asked.keys)
        measure(asked, Path(folder))


def measure(asked: argparse.Namespace, folder: Path) -> None:
    # Not at the top: tasks load this file too.
    from pipeline.spark.bulk.engine import BulkOptions, open_session, run_bulk

    words = write_text(folder / "text", asked.words)
    started = perf_counter()
    session = open_session(asked.master, starts_fast=True)  # as the command does
    session.range(10).count()
    print(f"load           {os.getloadavg()[0]:12.1f} on {len(os.sched_getaffinity(0))} cores")
    print(f"session        {perf_counter() - started:12.1f} s")
    rates = []
    for number in range(asked.rounds):
        bare = words / plain_seconds(folder / "text")
        result = run_bulk(__file__ + ":flow", session, BulkOptions(partitions=asked.partitions))
        rates.append(words / result.seconds)
        if number == 0:
            check(folder / "counts", words)
        work = sum(counts.seconds for counts in result.stages)
        print(
            f"running count  {rates[-1]:12,.0f} records/s   {words:,} words in {result.seconds:.1f} s,"
            f" {work:.1f} s of it in operators and files; plain Python {bare:,.0f} words in a second of one core,"
            f" so {rates[-1] / bare:.2f} of it, load {os.getloadavg()[0]:.1f}"
        )
    print(f"median         {sorted(rates)[len(rates) // 2]:12,.0f} records/s   all counts right")
    measure_fused(asked, folder, session, words)
    for name, records in (("skewed", words), ("many", asked.keys)):
        result = run_bulk(
            f"{__file__}:{name}", session, BulkOptions(partitions=1 if name == "many" else asked.partitions)
        )
        label = "one key" if name == "skewed" else "keys, one task"
        print(f"{label:15s}{records / result.seconds:12,.0f} records/s   {records:,} records in {result.seconds:.1f} s")
    measure_final(asked, folder)


def measure_fused(asked: argparse.Namespace, folder: Path, session: SparkSession, words: int) -> None:
    from pipeline.spark.bulk.engine import BulkOptions, run_bulk

    expected: Counter[str] = Counter()
    for path in (folder / "text").glob("*.txt"):
        expected.update(path.read_text().split())
    rates = []
    for _ in range(asked.rounds):
        bare = words / plain_seconds(folder / "text")
        shutil.rmtree(folder / "fused", ignore_errors=True)
        result = run_bulk(__file__ + ":fused", session, BulkOptions(partitions=asked.partitions))
        if dict(_rows(folder / "fused")) != expected:
            sys.exit("WRONG: the final counts are others")
        rates.append(words / result.seconds)
        print(
            f"fused          {rates[-1]:12,.0f} records/s   {words:,} words in {result.seconds:.1f} s; plain Python"
            f" {bare:,.0f}, so {rates[-1] / bare:.2f} of it, load {os.getloadavg()[0]:.1f}"
        )
    print(f"median         {sorted(rates)[len(rates) // 2]:12,.0f} records/s   all counts right")


def measure_final(asked: argparse.Namespace, folder: Path) -> None:
    """In a child: the JVM of this one has its fast compiler only, and there is one JVM to a process."""
    command = [sys.executable, __file__, "--only-final", "--partitions", str(asked.partitions)]
    command += ["--rounds", str(asked.rounds), "--copies", str(asked.copies), "--master", asked.master]
    subprocess.run(command, check=True, env={**os.environ, "BULK_FOLDER": str(folder)})


def compare_final(asked: argparse.Namespace, folder: Path) -> None:
    from pipeline.spark.bulk.engine import BulkOptions, open_session, run_bulk

    expected = write_words(folder / "words", folder / "text", asked.copies)
    words = expected.total()
    session = open_session(asked.master)
    ratios = []
    for number in range(asked.rounds + 1):
        started = perf_counter()
        counts = session.read.text(str(folder / "words")).groupBy("value").count()
        counts.write.mode("overwrite").json(str(folder / "by_hand"))
        by_hand = perf_counter() - started
        shutil.rmtree(folder / "final", ignore_errors=True)
        result = run_bulk(__file__ + ":final", session, BulkOptions(partitions=asked.partitions, native_bytes=0))
        if result.native["words"]:
            sys.exit(f"WRONG: Python has counted: {result.native['words']}")
        if number == 0:
            # The first round compiles.
            if dict(_rows(folder / "final")) != expected:
                sys.exit("WRONG: the final counts are others")
            continue
        ratios.append(result.seconds / by_hand)
        print(
            f"final count    {words / result.seconds:12,.0f} records/s   {words:,} words in {result.seconds:.1f} s;"
            f" DataFrame code by hand {by_hand:.1f} s, so {ratios[-1]:.2f} times that, load {os.getloadavg()[0]:.1f}"
        )
    print(f"median         {sorted(ratios)[len(ratios) // 2]:12.2f} times the DataFrame code")


if __name__ == "__main__":
    main()
