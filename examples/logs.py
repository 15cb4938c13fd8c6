"""Counts the problems of each service in the logs of a small shop, with grep, sed and a program of its own.

    celeriac run examples/logs.py

Reads examples/data/logs/*.log, or the folder that LOGS names; writes out/problems/part-*.txt, the lines with their
numbers taken out, and out/services/part-*.csv, how many each service has.
"""

import os
import sys
from pathlib import Path

from pipeline import Pipeline, count, read, write

here = Path(__file__).parent
folder = os.environ.get("LOGS", str(here / "data" / "logs"))

flow = Pipeline("logs")
lines = flow.source(read.text(folder), name="lines")
# grep and sed run once for each batch of lines; grep ends with 1 when it has selected nothing.
problems = lines.external(["grep", "-E", " (WARN|ERROR) "], protocol="lines", exit_codes=(0, 1), name="problems")
plain = problems.external(["sed", "-E", r"s/(order|user) [0-9]+/\1 #/g"], protocol="lines", name="plain")
plain.sink(write.text("out/problems"), name="text")
# This one runs as long as its worker, and answers each record.
parsed = plain.external([sys.executable, here / "programs" / "parse_log.py"], memory_bytes=1 << 30, name="parsed")
(
    parsed.key_by("service", name="by_service")
    .aggregate(problems=count(), name="running_count")
    .last(name="final_count")
    .sink(write.csv("out/services"), name="table")
)
