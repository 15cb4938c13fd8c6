"""Rows per second into a table, through a whole job: SQLite and PostgreSQL, insert and upsert.

    python benchmarks/sql.py                              # both; PostgreSQL from the wheel of the extra dev
    python benchmarks/sql.py --rows 500000 --workers 2 --url postgresql://user@host/name

The rate is taken between the first rows that are seen in the table and the last: the start of the job does not count.
At the end the table is checked. This file is also the pipeline that the workers load.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from sqlalchemy import create_engine, exc, text

sys.path.insert(0, str(Path(__file__).parent.parent))

from pipeline import Pipeline, read, write

ROWS = int(os.environ.get("BENCH_ROWS", "200000"))
MODE = os.environ.get("BENCH_MODE", "insert")
KEYS = 50_000


def orders() -> Iterator[dict[str, Any]]:
    for number in range(ROWS):
        key = number if MODE == "insert" else number % KEYS
        yield {"id": key, "customer": f"c{number % 999}", "amount": number / 4, "paid": number % 2 == 0}


flow = Pipeline("bench_sql")
flow.source(read.iterable(orders), name="orders").sink(
    write.sql("env:BENCH_URL", "orders", key="id", mode=MODE, create=True), name="table"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--url", help="a PostgreSQL database whose table `orders` may be dropped")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for mode in ("insert", "upsert"):
            measure(f"sqlite:///{folder}/bench.db", mode, options)
        if options.url:
            both(options.url, options)
            return
        from tests.postgres import PostgresServer

        server = PostgresServer()
        server.start(is_durable=True)
        try:
            both(server.url, options)
        finally:
            server.close()


def both(url: str, options: argparse.Namespace) -> None:
    for mode in ("insert", "upsert"):
        measure(url.replace("postgresql://", "postgresql+psycopg://"), mode, options)


def measure(url: str, mode: str, options: argparse.Namespace) -> None:
    engine = create_engine(url)
    ask(engine, "DROP TABLE IF EXISTS orders")
    wanted = options.rows if mode == "insert" else min(KEYS, options.rows)
    run = [sys.executable, "-m", "pipeline.cli.main", "run", __file__, "--quiet", "--workers", str(options.workers)]
    shared = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    job = subprocess.Popen(
        [*run], env={**shared, "BENCH_URL": url, "BENCH_ROWS": str(options.rows), "BENCH_MODE": mode}
    )
    first: tuple[float, int] | None = None
    last = (0.0, 0)
    question = "SELECT count(*) FROM orders" if mode == "insert" else "SELECT coalesce(max(amount), 0) * 4 FROM orders"
    while job.poll() is None:
        seen = ask(engine, question)
        if seen and seen > last[1]:
            last = (perf_counter(), int(seen))
            first = first or last
        sleep(0.1)
    if job.returncode or ask(engine, "SELECT count(*) FROM orders") != wanted:
        sys.exit(f"WRONG: code {job.returncode}, {ask(engine, 'SELECT count(*) FROM orders')} rows of {wanted}")
    assert first is not None
    rate = (last[1] - first[1]) / max(last[0] - first[0], 1e-9)
    print(f"{engine.dialect.name:<11}{mode:<7}{rate:>9,.0f} rows/s   ({options.workers} worker, {options.rows:,} rows)")
    engine.dispose()


def ask(engine: Any, question: str) -> Any:
    """The number, or None while there is no such table, or it is locked."""
    try:
        with engine.begin() as connection:
            result = connection.execute(text(question))
            return result.scalar() if result.returns_rows else None
    except (exc.OperationalError, exc.ProgrammingError):
        return None


if __name__ == "__main__":
    main()
