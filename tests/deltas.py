"""A Delta sink by hand: rows are staged and published, and the table is read as the library reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from pipeline.plan import SinkPlan
from pipeline.records import Batch
from pipeline.sinks.publisher import Published, discard, publish
from pipeline.sinks.staging import StagedFacts, StagingFile

JOB = "job-1"


def a_sink(path: Path | str, mode: str = "append", key_field: str | None = None) -> SinkPlan:
    return SinkPlan("result", "delta", str(path), {"mode": mode}, key_field)


def stage(sink: SinkPlan, *rows: Any, partition: int = 0, job: str = JOB) -> StagedFacts:
    file = StagingFile.create(sink, job, 0, partition, 1)
    file.write(Batch(list(rows)))
    facts = file.sync()
    file.close()
    return facts


def run(sink: SinkPlan, *rows: Any, job: str = JOB) -> Published:
    published = publish(sink, job, [stage(sink, *rows, job=job)], run="1.0")
    discard(sink, job)
    return published


def rows_of(path: Path) -> list[dict[str, Any]]:
    """As the library reads the table, in an order of their own."""
    rows = DeltaTable(path).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: str(sorted(row.items(), key=str)))


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
