"""What a console sink prints: a line for each record. Prints nothing itself."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from pipeline.plan import SinkPlan
from pipeline.records import Batch
from pipeline.sinks.rows import plain_text

_NO_JSON: Final = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)


def console_lines(sink: SinkPlan, batch: Batch) -> list[str]:
    """`key: value` on a keyed stream, else the value: text as it is, all else as JSON."""
    if sink.key_field is None or batch.keys is None:
        return [text_of(value) for value in batch.values]
    return [f"{text_of(key)}: {text_of(value)}" for key, value in zip(batch.keys, batch.values, strict=True)]


def text_of(value: Any) -> str:
    """One line for any value: text as it is, all else as JSON, or as Python shows it."""
    try:
        return plain_text(value)
    except _NO_JSON:
        return repr(value)
