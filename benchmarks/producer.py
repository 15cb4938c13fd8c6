"""Records per second from one producer process into a job's inboxes: from the first send until flush has returned.

    python benchmarks/producer.py

No worker runs: what is measured is the producer, with Redis on this machine; and its CPU time for each record, which
other load disturbs less. Afterwards every record is looked for in the inboxes: each must be there once, and those of
one key in the order in which they were sent.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from pipeline import Pipeline, read, write
from pipeline.codec import decode_batch
from pipeline.embedded.redis import EmbeddedRedis
from pipeline.messages import Data, decode_header
from pipeline.plan import compile_plan
from pipeline.producer import Producer
from pipeline.settings import Limits
from pipeline.store import keys
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts

KEYS = 1_000
PARTITIONS = 4


def the_pipeline() -> Pipeline:
    flow = Pipeline("bench")
    flow.source(read.producer(), name="in").sink(write.stream("out"), name="out")
    return flow


def produce(redis_url: str, records: int, with_ids: bool) -> tuple[float, float]:
    """Records per second, from the first send until the job has them all, and microseconds of CPU for each.

    The job is made, verified and removed.
    """
    client = connect(redis_url)
    store = JobStore(Scripts(client))
    plan = compile_plan(the_pipeline().graph(), PARTITIONS, Limits(inbox_records=1 << 40, inbox_bytes=1 << 40))
    store.create("bench", plan)
    try:
        with Producer("bench", redis_url) as producer:
            producer.flush()
            started, started_cpu = perf_counter(), process_time()
            if with_ids:
                for number in range(records):
                    producer.send(f"user-{number % KEYS}", number, id=f"event-{number}")
            else:
                for number in range(records):
                    producer.send(f"user-{number % KEYS}", number)
            producer.flush()
            seconds, cpu_seconds = perf_counter() - started, process_time() - started_cpu
        verify(client, records)
    finally:
        store.erase("bench")
    return records / seconds, cpu_seconds / records * 1e6


def verify(client: Any, records: int) -> None:
    """Ends the program unless the inboxes hold the numbers 0 .. records - 1 once, those of a key in order."""
    seen = bytearray(records)
    newest: dict[int, int] = {}
    for partition in range(PARTITIONS):
        place = "-"
        while page := client.xrange(keys.inbox("bench", 0, partition), place, "+", count=100):
            for _, fields in page:
                header = decode_header(fields[b"h"])
                if not isinstance(header, Data) or header.skip:
                    sys.exit(f"WRONG: an entry that nobody sent: {header}")
                for number in decode_batch(fields[b"d"]).values:
                    if seen[number] or newest.get(number % KEYS, -1) > number:
                        sys.exit(f"WRONG: {number} came again, or behind a later one of its key")
                    seen[number], newest[number % KEYS] = 1, number
            place = f"({page[-1][0].decode()}"
    if sum(seen) != records:
        sys.exit(f"WRONG: {sum(seen)} of {records} records are there")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--records", type=int, default=1_000_000)
    options.add_argument("--ids", type=int, default=200_000, help="records of the rounds with ids")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--fsync", choices=["everysec", "always", "no"], default="everysec")
    asked = options.parse_args()
    with EmbeddedRedis.start(fsync=asked.fsync) as server:
        for name, records, with_ids in (("plain", asked.records, False), ("with ids", asked.ids, True)):
            rates = [produce(server.url, records, with_ids) for _ in range(asked.rounds)]
            said = ", ".join(f"{rate:,.0f} ({cpu:.1f} us)" for rate, cpu in rates)
            print(f"{name:10}{said} records/s (CPU for each), all {records:,} arrived each time")


if __name__ == "__main__":
    main()
