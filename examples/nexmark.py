"""Queries of the Nexmark benchmark, without windows, over the events of an auction house: persons, auctions and bids.

    python examples/nexmark.py events.jsonl 100000                     # makes input
    NEXMARK=events.jsonl celeriac run examples/nexmark.py              # live
    NEXMARK=events.jsonl celeriac run examples/nexmark.py --engine spark

Writes out/nexmark/q0, q1, ...: one folder of JSON Lines for each query. Their numbers are those of the benchmark
(Tucker, Tufte, Papadimos and Maier: NEXMark, 2002; later ones as of Flink's and Beam's suites). What asks for the last
or the best of something says it when the input has ended. The others of the benchmark need windows of event time.
"""

import json
import os
import random
import sys
from pathlib import Path

from pipeline import Pipeline, count, maximum, mean, minimum, read, total, write

DAY_MS = 86_400_000
HOUR_MS = 3_600_000


def is_a(kind):
    return lambda event: event["kind"] == kind


def day_of(bid):
    return bid["at"] // DAY_MS


def in_euros(bid):
    return {**bid, "price": round(bid["price"] * 0.908, 2)}


def with_time_of_day(bid):
    hour = bid["at"] % DAY_MS // HOUR_MS
    kind = "day" if 8 <= hour <= 18 else "night" if hour <= 6 or hour >= 20 else "other"
    return {"auction": bid["auction"], "bidder": bid["bidder"], "time": kind, "cs": bid["url"].count("c")}


def seller_of(event):
    return event["seller"] if event["kind"] == "auction" else event["id"]


def auction_of(event):
    return event["id"] if event["kind"] == "auction" else event["auction"]


def joined(one, combine):
    """For `stateful_map`: each pair of the one record of kind `one` and another of its key, whichever comes first."""

    def join(_key, event, state):
        first, waiting = state or (None, [])
        if event["kind"] == one:
            return [combine(event, each) for each in waiting], (event, [])
        if first is None:
            return [], (None, [*waiting, event])
        return [combine(first, event)], (first, [])

    return join


def offer(person, auction):
    return {"name": person["name"], "city": person["city"], "state": person["state"], "auction": auction["id"]}


def bid_with_item(auction, bid):
    return {**bid, "item": auction["item"], "category": auction["category"]}


def winner(_key, event, state):
    """The best bid of an auction so far: of those in its time and not below its reserve the highest, then the first."""
    auction, waiting, best = state or (None, [], None)
    if event["kind"] == "auction":
        auction = event
    else:
        waiting = [*waiting, event]
    if auction is None:
        return None, (None, waiting, None)
    for bid in waiting:
        is_valid = auction["at"] <= bid["at"] <= auction["expires"] and bid["price"] >= auction["reserve"]
        if is_valid and (best is None or (-bid["price"], bid["at"]) < (-best["price"], best["at"])):
            best = {"auction": auction["id"], "category": auction["category"], "price": bid["price"], "at": bid["at"]}
    return best, (auction, [], best)


def later(one, other):
    return max(one, other, key=lambda bid: (bid["at"], bid["price"]))


def top_ten(_key, bid, best):
    best = sorted([*(best or []), [bid["price"], bid["bidder"], bid["at"]]], reverse=True)[:10]
    return best, best


def folder(name):
    return write.jsonl(f"out/nexmark/{name}")


flow = Pipeline("nexmark")
events = flow.source(read.json(os.environ.get("NEXMARK", "events.jsonl")), name="events")
persons, auctions, bids = events.branch(is_a("person"), is_a("auction"), name="kinds")

bids.sink(folder("q0"), name="q0")
bids.map(in_euros, name="euros").sink(folder("q1"), name="q1")
some = bids.filter(lambda bid: bid["auction"] % 123 == 0, name="some_auctions")
some.map(lambda bid: {"auction": bid["auction"], "price": bid["price"]}, name="prices").sink(folder("q2"), name="q2")
bids.map(with_time_of_day, name="times").sink(folder("q14"), name="q14")
bids.map(lambda bid: [bid["auction"], *bid["url"].split("/")[3:6]], name="paths").sink(folder("q22"), name="q22")

# Local item suggestion: who in these states offers items of category 10.
local = persons.filter(lambda person: person["state"] in ("OR", "ID", "CA"), name="local")
offers = local.union(auctions.filter(lambda auction: auction["category"] == 10, name="category_10"), name="offers")
(
    offers.key_by(seller_of, name="by_seller")
    .stateful_map(joined("person", offer), name="offered")
    .flat_map(lambda rows: rows, name="suggestions")
    .sink(folder("q3"), name="q3")
)

# Winning bids, and their mean price by category.
winners = (
    auctions.union(bids, name="auctions_and_bids")
    .key_by(auction_of, name="by_auction")
    .stateful_map(winner, name="winner")
    .filter(lambda best: best is not None, name="won")
    .last(name="winning")
)
winners.sink(folder("q9"), name="q9")
by_category = winners.key_by("category", name="by_category")
by_category.aggregate(price=mean("price"), name="category_prices").last(name="mean_prices").sink(
    folder("q4"), name="q4"
)

# Each auction by day; the last bid of each bidder; the ten best of each auction; bids with their item.
(
    bids.key_by(lambda bid: (bid["auction"], day_of(bid)), name="by_day")
    .aggregate(
        bids=count(), low=minimum("price"), high=maximum("price"), mean=mean("price"), sum=total("price"), name="days"
    )
    .last(name="whole_days")
    .sink(folder("q17"), name="q17")
)
by_bidder = bids.key_by(lambda bid: (bid["bidder"], bid["auction"]), name="by_bidder")
by_bidder.reduce(later, name="later").last(name="last_bids").sink(folder("q18"), name="q18")
by_offer = bids.key_by("auction", name="by_offer")
by_offer.stateful_map(top_ten, name="top_ten").last(name="best_bids").sink(folder("q19"), name="q19")
items = bids.union(auctions.filter(lambda auction: auction["category"] == 10, name="items_of_10"), name="items")
(
    items.key_by(auction_of, name="by_item")
    .stateful_map(joined("auction", bid_with_item), name="bid_items")
    .flat_map(lambda rows: rows, name="items_bid_for")
    .sink(folder("q20"), name="q20")
)


def make_events(number, seed=7):
    """In each fifty events one person, three auctions and 46 bids, as in the benchmark."""
    chance, people, items, at = random.Random(seed), 0, 0, 1_700_000_000_000
    for place in range(number):
        at += chance.randrange(20_000)
        kind = place % 50
        if kind == 0:
            people += 1
            name, city = f"person {people}", chance.choice(["Boise", "Phoenix", "Portland", "San Francisco"])
            state = chance.choice(["AZ", "CA", "ID", "OR", "WA", "WY"])
            yield {"kind": "person", "id": people, "name": name, "city": city, "state": state, "at": at}
        elif kind <= 3:
            items += 1
            price, ends = chance.randrange(100, 10_000), at + chance.randrange(HOUR_MS, 4 * HOUR_MS)
            yield {
                "kind": "auction",
                "id": items,
                "item": f"item {items}",
                "reserve": price,
                "at": at,
                "expires": ends,
                "seller": chance.randrange(1, people + 1),
                "category": chance.randrange(10, 15),
            }
        else:
            auction = chance.randrange(max(1, items - 30), items + 2)  # now and then one that has not begun
            url = f"https://www.auctions.example/{chance.choice(['ab', 'cd', 'ce'])}/{auction}/item.htm"
            yield {
                "kind": "bid",
                "auction": auction,
                "bidder": chance.randrange(1, people + 1),
                "price": chance.randrange(100, 50_000),
                "url": url,
                "at": at,
            }


if __name__ == "__main__":
    path, number = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(event) + "\n" for event in make_events(number))
