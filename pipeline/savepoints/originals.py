"""State that is as it was written, on its way back to Redis: in Arrow as far as that goes, so a key costs little."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.codec import encode_state_fields, encode_value, encode_values
from pipeline.errors import EncodingError, ReadingError, SavepointError
from pipeline.keying import groups_of
from pipeline.reading.keytext import are_plain, parse_keys
from pipeline.savepoints.rows import hide, uncollected
from pipeline.store.pairs import Pairs, framed, front

_from_json = msgspec.json.Decoder().decode

_HEADS: Final = [encode_value("x" * length)[: -length or None] for length in range(256)]
"""How a text of so many bytes begins in MessagePack."""


@dataclass(frozen=True, slots=True)
class Part:
    """What of a page goes to one stage. runs: (key group, its first pair, the first behind it)."""

    stage: int
    pairs: Pairs
    runs: list[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class OriginalPage:
    """Some keys, in arrays: their operators, in a dictionary, their groups, and what Redis holds of each.

    counts: operator -> keys. pieces: as `Pairs` takes them.
    """

    counts: Mapping[str, int]
    operators: Any
    groups: Any
    pieces: tuple[Any, ...]

    @classmethod
    def of_rows(
        cls, operators: Sequence[str], groups: Sequence[int], names: Sequence[bytes], values: Sequence[bytes]
    ) -> OriginalPage:
        given = pa.array(operators, pa.string()).dictionary_encode()
        pieces = (*framed(pa.array(names, pa.binary())), *framed(pa.array(values, pa.binary())))
        return cls(Counter(operators), given, pa.array(groups, pa.int32()), pieces)

    def parts(self, stages: Mapping[str, int]) -> Iterator[Part]:
        """All that belongs to operators of `stages`."""
        targets = [stages.get(operator) for operator in self.operators.dictionary.to_pylist()]
        for stage in dict.fromkeys(targets):
            columns = (self.groups, *self.pieces)
            if targets.count(stage) < len(targets):
                places = [place for place, target in enumerate(targets) if target == stage]
                mask = pc.is_in(self.operators.indices, pa.array(places, self.operators.indices.type))
                columns = tuple(column.filter(mask) for column in columns)
            if stage is not None and len(columns[0]):
                groups, *pieces = columns
                yield Part(stage, Pairs(*pieces), list(_runs(groups)))


def original_page(rows: Any, stages: Mapping[str, str]) -> OriginalPage | None:
    """Of a record batch of rows as `state_columns` makes them. `stages`: operator -> its stage.

    None if any row is wrong: the rows, one by one, say which, and why.
    """
    operators, groups, texts = rows.column("operator"), rows.column("group"), rows.column("key")
    if any(rows.column(name).null_count for name in ("stage", "operator", "group", "key")):
        return None
    if not _are_of(operators, rows.column("stage"), stages):
        return None
    try:
        keys: list[Any]
        if are_plain(pc.unique(pc.utf8_slice_codeunits(texts, 0, 1)).to_pylist()):
            words = texts.cast(pa.binary())
            keys, names = words.to_pylist(), _names(operators, words)
        else:
            keys = parse_keys(texts.to_pylist())
            names = framed(pa.array(encode_state_fields(operators.to_pylist(), keys), pa.binary()))
        if groups_of(keys) != groups.to_pylist():  # a text is of the group of its bytes
            return None
        with uncollected():
            values = _values(rows.column("value"), rows.column("packed"))
    except (EncodingError, ReadingError, SavepointError, msgspec.MsgspecError, RecursionError):
        return None
    counts = {each["values"]: each["counts"] for each in pc.value_counts(operators).to_pylist()}
    return OriginalPage(counts, operators, groups, (*names, *framed(values)))


def _are_of(operators: Any, given: Any, stages: Mapping[str, str]) -> bool:
    """Whether each operator is in the stage that is given for it."""
    places = {stage: place for place, stage in enumerate(given.dictionary.to_pylist())}
    wanted = [places.get(stages.get(operator, "")) for operator in operators.dictionary.to_pylist()]
    found: bool = pa.array(wanted, given.indices.type).take(operators.indices).equals(given.indices)
    return found


def _runs(groups: Any) -> Iterator[tuple[int, int, int]]:
    runs, start = pc.run_end_encode(groups), 0
    for group, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield group, start, end
        start = end


def _names(operators: Any, words: Any) -> tuple[Any, Any]:
    """As `encode_state_fields` of keys that are the texts of these bytes, in two pieces as of `framed`."""
    lengths = pc.binary_length(words)
    most = pc.max(lengths).as_py()
    if most is None or most >= len(_HEADS):
        texts = words.cast(pa.string()).to_pylist()
        return framed(pa.array(encode_state_fields(operators.to_pylist(), texts), pa.binary()))
    beginnings = pa.concat_arrays(map(_beginnings, operators.dictionary.to_pylist()))
    return beginnings.take(pc.add(lengths, pc.multiply(operators.indices, len(_HEADS)))), words


@lru_cache(256)
def _beginnings(operator: str) -> Any:
    """By the length of a key, all that stands in front of its text."""
    prefix = operator.encode() + b"\0"
    texts = [(prefix + head, length) for length, head in enumerate(_HEADS)]
    return pa.array([front(len(begun) + length) + begun for begun, length in texts], pa.binary())


def _values(values: Any, packed: Any) -> Any:
    """As `hide` of each. Raises what that raises, and more."""
    if not values.null_count and packed.null_count == len(packed):
        texts = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values), ",")
        found = _from_json(b"[%b]" % texts[0].as_buffer())
        if len(found) == len(values):  # two might be in one row, and none in another
            return pa.array(encode_values(found), pa.binary())
    return pa.array(list(map(hide, values.to_pylist(), packed.to_pylist())), pa.binary())
