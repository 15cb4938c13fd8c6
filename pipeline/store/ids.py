"""Records' own ids as `append` takes them: digests, by the set that remembers them. Decides nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

from pipeline.plan import SourcePlan
from pipeline.read import ID_COUNT, ID_SECONDS
from pipeline.store import keys

GROUPS: Final = 256
"""Sets of remembered ids of a source: an id is always looked for in the same one, whichever lane brings it."""

_DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Memory:
    """How long ids are remembered, in milliseconds, and how many of them in each set."""

    milliseconds: int = ID_SECONDS * 1000
    per_group: int = -(-ID_COUNT // GROUPS)

    @classmethod
    def of(cls, source: SourcePlan | None) -> Memory:
        options = source.options if source is not None else {}
        seconds, count = options.get("id_seconds", ID_SECONDS), options.get("id_count", ID_COUNT)
        return cls(seconds * 1000, -(-count // GROUPS))


def digest(id_: str) -> bytes:
    """Sixteen bytes that stand for the id. The id must be valid Unicode."""
    return hashlib.blake2b(id_.encode(), digest_size=_DIGEST_BYTES).digest()


def arguments(job: str, source: str, ids: Sequence[str | None], memory: Memory) -> tuple[list[str], list[Any]]:
    """What `append` gets behind its other KEYS and ARGV for records with these ids; nothing where none has one."""
    indices: dict[int, list[str]] = {}
    digests: dict[int, bytearray] = {}
    for index, id_ in enumerate(ids):
        if id_ is not None:
            group = crc32(id_.encode()) % GROUPS
            indices.setdefault(group, []).append(str(index))
            digests.setdefault(group, bytearray()).extend(digest(id_))
    if not indices:
        return [], []
    args: list[Any] = [memory.milliseconds, memory.per_group]
    for group, places in indices.items():
        args += [" ".join(places), bytes(digests[group])]
    return [keys.ids(job, source, group) for group in indices], args
