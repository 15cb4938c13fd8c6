"""The state of savepoints as lines for people: of one, and what differs between two. Changes nothing."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import msgspec

from pipeline.errors import SavepointError
from pipeline.reading.keytext import key_text
from pipeline.savepoints.reading import Savepoint
from pipeline.savepoints.rows import show

_DIGEST_BYTES = 16


def state_lines(savepoint: Savepoint, operator: str | None = None) -> Iterator[str]:
    """A JSON object for each key: stage, operator, key, value, or packed (base64) for what JSON cannot say.

    Raises SavepointError, also for an operator that it has not.
    """
    names = [each.operator for each in savepoint.manifest.plan.states]
    if operator is not None and operator not in names:
        raise SavepointError(
            f"the savepoint {savepoint.where} has no operator {operator!r}", hint=f"it has {', '.join(names) or 'none'}"
        )
    for row in savepoint.states():
        if operator is None or row.operator == operator:
            yield msgspec.json.encode(
                {"stage": row.stage, "operator": row.operator, "key": key_text(row.key), **_value(row.data)}
            ).decode()


def _value(data: bytes) -> dict[str, Any]:
    shown = show(data)
    if shown.value is None:
        return {"packed": base64.b64encode(data).decode()}
    return {"value": msgspec.Raw(shown.value.encode())}


def differences(one: Savepoint, other: Savepoint) -> Iterator[str]:
    """A line for each key whose state is not the same in both; none when all is. Holds a digest of each key."""
    before = {(row.operator, row.field): _digest(row.data) for row in one.states()}
    for row in other.states():
        found = before.pop((row.operator, row.field), None)
        if found is None:
            yield f"only in {other.name}: {row.operator} {key_text(row.key)}"
        elif found != _digest(row.data):
            yield f"differs: {row.operator} {key_text(row.key)}"
    for row in one.states() if before else ():
        if (row.operator, row.field) in before:
            yield f"only in {one.name}: {row.operator} {key_text(row.key)}"


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=_DIGEST_BYTES).digest()
