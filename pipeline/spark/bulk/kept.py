"""Keeps dead letters of a run in a file of JSON lines, for people and programs."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from pipeline.codec import decode_batch
from pipeline.plan import Plan
from pipeline.records import Batch
from pipeline.sinks.lines import text_of
from pipeline.sinks.places import disk_fault
from pipeline.spark.bulk.letters import Letter


def write_letters(
    path: Path, plan: Plan, letters: Sequence[Letter], held: Sequence[tuple[int, int, bytes]] = ()
) -> None:
    """A line for each letter, then for each record held behind one; `payload` is the record exactly, as base64.

    Raises SinkError when the file cannot be written.
    """
    try:
        with path.open("xb") as file:
            for row in _rows(plan, letters, held):
                file.write(msgspec.json.encode(row) + b"\n")
    except OSError as error:
        raise disk_fault(error, path, "write") from error


def _rows(plan: Plan, letters: Sequence[Letter], held: Sequence[tuple[int, int, bytes]]) -> Iterator[dict[str, Any]]:
    for letter in letters:
        yield {
            "kind": letter.kind,
            "stage": plan.stage_name(letter.stage),
            "partition": letter.partition,
            "operator": letter.operator,
            "error": letter.error,
            "traceback": letter.traceback,
            "tried": list(letter.tried),
            **_shown(letter.record(), letter.payload),
        }
    for stage, partition, payload in held:
        record = decode_batch(payload)
        yield {
            "kind": "held",
            "stage": plan.stage_name(stage),
            "partition": partition,
            **_shown(record, payload),
        }


def _shown(record: Batch, payload: bytes) -> dict[str, Any]:
    key = record.keys[0] if record.keys else None
    return {"key": _plain(key), "value": _plain(record.values[0]), "payload": base64.b64encode(payload).decode()}


def _plain(value: Any) -> Any:
    """The value, where JSON has it; else as text."""
    try:
        return msgspec.Raw(msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return text_of(value)
