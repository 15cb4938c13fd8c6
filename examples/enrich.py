"""Adds to each order the region of its customer, which a slow and flaky web service knows.

    python examples/programs/customers.py 8099 &
    CUSTOMERS=http://127.0.0.1:8099 celeriac run examples/enrich.py

Every fifth answer about a customer is 503: those orders are tried again, and others go on meanwhile. Customer c13 is
unknown (404): after four attempts its orders are dead letters, so the exit code is 4. Writes out/regions/part-*.csv.
"""

import json
import os
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from pipeline import Pipeline, count, dead_letter, read, retry, total, write

service = os.environ.get("CUSTOMERS", "http://127.0.0.1:8099")


def with_region(order: dict[str, Any]) -> dict[str, Any]:
    with urlopen(f"{service}/{order['customer']}", timeout=5) as answer:
        return {**order, "region": json.load(answer)["region"]}


flow = Pipeline("enrich")
policy = retry(4, first_seconds=0.02, most_seconds=0.5, then=dead_letter())
(
    flow.source(read.csv(Path(__file__).parent / "data" / "orders"), name="orders", on_error=policy)
    .map(with_region, name="with_region")
    .key_by("region", name="by_region")
    .aggregate(orders=count(), cents=total("cents"), name="running_total")
    .last(name="final_total")
    .sink(write.csv("out/regions"), name="table")
)
