"""Reading the state of keyed operators from outside: one key at one moment, or all keys in pages. Never writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from pipeline.codec import split_state_field, state_field
from pipeline.keying import GROUPS, group_of
from pipeline.store import keys
from pipeline.store.connection import translated
from pipeline.store.foreign import ours

PAGE_FIELDS: Final = 100
"""About so many fields come with one answer of Redis; a small group comes at once."""

_KEYS_AT_ONCE: Final = 200


def load_key(client: Any, job: str, stage: int, operators: Sequence[str], key: Any) -> dict[str, bytes]:
    """Operator -> encoded state, for those that have any for this key; all of one moment.

    Raises EncodingError for what cannot be a key, StoreError.
    """
    fields = [state_field(operator, key) for operator in operators]
    with translated():
        raw = client.hmget(keys.state(job, stage, group_of(key)), fields) if fields else []
    return {operator: data for operator, data in zip(operators, raw, strict=True) if data is not None}


def load_keys(
    client: Any, job: str, stage: int, operators: Sequence[str], wanted: Sequence[Any]
) -> Iterator[tuple[int, str, Any, bytes]]:
    """As `scan_states`, of these keys only, in their order; nothing else is fetched. Raises as `load_key` does."""
    for start in range(0, len(wanted), _KEYS_AT_ONCE):
        part = wanted[start : start + _KEYS_AT_ONCE]
        fields = [[state_field(operator, key) for operator in operators] for key in part]
        with translated():
            pipe = client.pipeline(transaction=False)
            for key, names in zip(part, fields, strict=True):
                pipe.hmget(keys.state(job, stage, group_of(key)), names)
            answers = pipe.execute()
        for key, found in zip(part, answers, strict=True):
            for operator, data in zip(operators, found, strict=True):
                if data is not None:
                    yield group_of(key), operator, key, data


def scan_states(
    client: Any, job: str, stage: int, groups: Sequence[int] = range(GROUPS)
) -> Iterator[tuple[int, str, Any, bytes]]:
    """(key group, operator, key, encoded state) of a stage, group after group, each pair of operator and key once.

    What is there all the while is given; what comes or goes meanwhile may be or not. Holds the fields of one key group.
    Raises ForeignData, StoreError.
    """
    for group in groups:
        seen: set[bytes] = set()
        cursor = 0
        while True:
            with translated():
                cursor, page = client.hscan(keys.state(job, stage, group), cursor, count=PAGE_FIELDS)
            for field, data in page.items():
                if field not in seen:
                    seen.add(field)
                    with ours(keys.state(job, stage, group)):
                        operator, key = split_state_field(field)
                    yield group, operator, key, data
            if not cursor:
                break
