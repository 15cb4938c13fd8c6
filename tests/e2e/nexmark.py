"""The queries of examples/nexmark.py once more, over a list of events in memory, with nothing of ours."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]


def _of(events: Rows, kind: str) -> Rows:
    return [event for event in events if event["kind"] == kind]


def _groups(rows: Rows, key: Callable[[dict[str, Any]], Any]) -> dict[Any, Rows]:
    found: dict[Any, Rows] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return found


def _winning(events: Rows) -> Rows:
    found = []
    for auction in _of(events, "auction"):
        valid = [
            bid
            for bid in _of(events, "bid")
            if bid["auction"] == auction["id"]
            and auction["at"] <= bid["at"] <= auction["expires"]
            and bid["price"] >= auction["reserve"]
        ]
        if valid:
            best = min(valid, key=lambda bid: (-bid["price"], bid["at"]))
            found.append({**auction, "price": best["price"]})
    return found


def expected(events: Rows) -> dict[str, list[Any]]:
    """Query -> what is to come of it, as far as `seen` looks, in no order."""
    persons, auctions, bids = (_of(events, kind) for kind in ("person", "auction", "bid"))
    tens = {auction["id"]: auction for auction in auctions if auction["category"] == 10}
    local = {person["id"]: person for person in persons if person["state"] in ("OR", "ID", "CA")}
    winning = _winning(events)
    return {
        "q0": [bid["at"] for bid in bids],
        "q1": [round(bid["price"] * 0.908, 2) for bid in bids],
        "q2": [[bid["auction"], bid["price"]] for bid in bids if bid["auction"] % 123 == 0],
        "q3": [[local[one["seller"]]["name"], id_] for id_, one in tens.items() if one["seller"] in local],
        "q4": [
            [category, sum(row["price"] for row in rows) / len(rows)]
            for category, rows in _groups(winning, lambda row: row["category"]).items()
        ],
        "q9": [[row["id"], row["price"]] for row in winning],
        "q14": [[bid["auction"], bid["url"].count("c")] for bid in bids],
        "q17": [
            [auction, day, len(rows), min(prices), max(prices), sum(prices)]
            for (auction, day), rows in _groups(bids, lambda bid: (bid["auction"], bid["at"] // 86_400_000)).items()
            for prices in [[row["price"] for row in rows]]
        ],
        "q18": [
            [*key, max(rows, key=lambda bid: bid["at"])["price"]]
            for key, rows in _groups(bids, lambda bid: (bid["bidder"], bid["auction"])).items()
        ],
        "q19": [
            [auction, sorted((row["price"] for row in rows), reverse=True)[:10]]
            for auction, rows in _groups(bids, lambda bid: bid["auction"]).items()
        ],
        "q20": [[tens[bid["auction"]]["item"], bid["at"]] for bid in bids if bid["auction"] in tens],
        "q22": [[bid["auction"], *bid["url"].split("/")[3:6]] for bid in bids],
    }


_LOOKS: dict[str, Callable[[Any], Any]] = {
    "q0": lambda row: row["at"],
    "q1": lambda row: row["price"],
    "q2": lambda row: [row["auction"], row["price"]],
    "q3": lambda row: [row["name"], row["auction"]],
    "q4": lambda row: [row["category"], row["price"]],
    "q9": lambda row: [row["auction"], row["price"]],
    "q14": lambda row: [row["auction"], row["cs"]],
    "q17": lambda row: [*row["key"], row["bids"], row["low"], row["high"], row["sum"]],
    "q18": lambda row: [*row["key"], row["price"]],
    "q19": lambda row: [row["auction"], [bid[0] for bid in row["value"]]],
    "q20": lambda row: [row["item"], row["at"]],
    "q22": lambda row: row,
}


def seen(query: str, rows: Iterable[Any]) -> list[Any]:
    """What is compared of a query's rows."""
    return [_LOOKS[query](row) for row in rows]


def in_order(values: Iterable[Any]) -> list[str]:
    return sorted(json.dumps(value) for value in values)


def read_events(path: Path) -> Rows:
    return [json.loads(line) for line in path.read_text().splitlines()]
