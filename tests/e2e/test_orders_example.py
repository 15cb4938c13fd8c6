"""The example of two shops: one is killed with -9 and sends everything again, and every order counts once."""

from __future__ import annotations

import csv
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from pipeline.client import Client
from pipeline.errors import StoreError
from pipeline.lifecycle import JobState
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts
from tests.e2e.chaos import ROOT, Site, wait_until

EXAMPLES = ROOT / "examples"


def totals() -> tuple[Counter[str], Counter[str]]:
    """(orders, cents) of each customer, from the shops' own files."""
    orders: Counter[str] = Counter()
    cents: Counter[str] = Counter()
    for path in (EXAMPLES / "data/orders").glob("*.csv"):
        for line in path.read_text().splitlines()[1:]:
            _, customer, amount = line.split(",")
            orders[customer] += 1
            cents[customer] += int(amount)
    return orders, cents


def is_running(jobs: JobStore) -> bool:
    try:
        return jobs.state("orders") is JobState.RUNNING
    except StoreError:
        return False


def read_table(folder: Path) -> list[dict[str, str]]:
    return [row for path in folder.glob("part-*") for row in csv.DictReader(path.read_text().splitlines())]


def test_a_shop_that_was_killed_sends_everything_again_and_every_order_counts_once(site: Site, redis_url: str) -> None:
    orders, cents = totals()
    run = site.start(str(EXAMPLES / "orders.py"), "--workers", "2", "--job-id", "orders", CELERIAC_REDIS=redis_url)
    with connect(redis_url) as connection, Client(redis_url) as client:
        jobs = JobStore(Scripts(connection))
        wait_until(lambda: is_running(jobs), "the job is registered")

        shops = subprocess.run(
            [sys.executable, str(EXAMPLES / "programs/send_orders.py"), "orders"],
            env=site.environment(CELERIAC_REDIS=redis_url),
            capture_output=True,
            text=True,
            timeout=60,
        )

        assert (shops.returncode, shops.stderr) == (0, "")
        assert "north: killed in the middle\n" in shops.stdout
        assert shops.stdout.count("600 orders are sent") == 2
        run.process.send_signal(signal.SIGINT)
        run.finish(code=130)

        rows = read_table(run.folder / "out/totals")
        assert {row["customer"]: int(row["orders"]) for row in rows} == orders
        assert {row["customer"]: int(row["cents"]) for row in rows} == cents
        assert len(rows) == len(orders)
        assert "duplicates dropped: 3" in run.said(), "more than half of the shop's orders came twice"
        running = [(key, value["orders"]) for key, value, _ in client.results("orders", "totals")]
        assert sorted(running) == sorted((key, n) for key in orders for n in range(1, orders[key] + 1))
        found = client.state("orders").get("running_total", "c07")
        assert found is not None
        assert found.result == {"orders": orders["c07"], "cents": cents["c07"]}
