"""Two shops send their orders to a job; the shop north is killed in the middle, starts again, and sends all of them.

    python send_orders.py JOB           both shops, and the accident
    python send_orders.py JOB SHOP      one shop, from its first order on

A shop does not know how far it got, and need not: each order has an id, and the job takes an id once.
"""

import csv
import subprocess
import sys
import time
from pathlib import Path

from pipeline.producer import Producer

FOLDER = Path(__file__).parents[1] / "data" / "orders"
HALF = "half of them are sent"


def send(job: str, shop: str) -> None:
    """Sends every order of the shop, and returns when the job has them."""
    rows = list(csv.DictReader((FOLDER / f"{shop}.csv").read_text().splitlines()))
    with Producer(job, linger_seconds=0.01) as producer:
        for number, row in enumerate(rows):
            order = {"customer": row["customer"], "cents": int(row["cents"])}
            producer.send(row["customer"], order, id=row["id"])
            if number == len(rows) // 2:
                producer.flush()
                print(HALF, flush=True)
            time.sleep(0.001)  # orders take their time
    print(f"{shop}: {len(rows)} orders are sent", flush=True)


def start(job: str, shop: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, __file__, job, shop], stdout=subprocess.PIPE, text=True)


def send_both(job: str) -> int:
    """Starts both shops and kills one. 0 when all orders have been sent."""
    south, north = start(job, "south"), start(job, "north")
    assert north.stdout is not None
    for line in north.stdout:
        if line.strip() == HALF:
            north.kill()
            print("north: killed in the middle")
    north.wait()
    again = start(job, "north")
    for shop in (south, again):
        print(shop.communicate()[0].replace(HALF + "\n", ""), end="")
    return south.returncode or again.returncode


if __name__ == "__main__":
    if len(sys.argv) == 2:
        sys.exit(send_both(sys.argv[1]))
    send(sys.argv[1], sys.argv[2])
