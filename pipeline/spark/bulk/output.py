"""What a step gives, turned into rows for Spark and lines for files: checked whole before any of it counts."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.codec import encode_value, encode_values
from pipeline.errors import EncodingError
from pipeline.kernel.contract import Step
from pipeline.kernel.stage import State
from pipeline.keying import check_keys
from pipeline.plan import Plan, SinkPlan, StagePlan
from pipeline.records import Batch
from pipeline.routing import Router, payloads
from pipeline.settings import Limits
from pipeline.sinks.places import FILE_FORMATS
from pipeline.sinks.rotation import Rotation, rotation_of
from pipeline.sinks.rows import encode_rows
from pipeline.sinks.staging import StagedFacts, StagingFile
from pipeline.spark.bulk.rows import are_own_keys

_MOST_TERM = 10**18


@dataclass(slots=True)
class Encoded:
    """rows: (edge, partition, records, payload). counted: (edge, keys, bytes) of records that are only counted.
    lines: sink -> its lines, and how many.
    """

    rows: list[tuple[str, int, int, bytes]] = field(default_factory=list)
    counted: list[tuple[str, list[Any], int]] = field(default_factory=list)
    lines: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    sunk: dict[str, int] = field(default_factory=dict)
    emitted: int = 0
    filtered: int = 0


@dataclass(frozen=True, slots=True)
class Selected:
    """Some keys of one keyed stage: only that and what is in front of it is run, and nothing is given to sinks.

    Records of other keys never reach the stage.
    """

    stage: int
    keys: frozenset[Any]

    def of(self, batch: Batch) -> Batch:
        """Its records of these keys. Raises EncodingError for what cannot be a key."""
        keys = batch.keys or []
        check_keys(keys)
        places = [place for place, key in enumerate(keys) if key in self.keys]
        return batch if len(places) == len(batch) else batch.at(places)


class BulkEncoder:
    """Encodes the steps of one task. Sinks of `handed` are given to the driver, whatever their format. Of the exchanges
    of `counted` the records are only counted.
    """

    def __init__(
        self,
        plan: Plan,
        stage: StagePlan,
        partition: int,
        handed: Collection[str],
        selected: Selected | None = None,
        counted: Collection[str] = (),
    ) -> None:
        self._limits = plan.limits
        self._partition = partition
        wanted = None if selected is None else {each.index for each in plan.up_to(selected.stage)}
        into = {edge: plan.stage(to) for edge, to in stage.exchanges.items() if wanted is None or to in wanted}
        self._routers = {edge: Router(to.serving) for edge, to in into.items() if to.keyed}
        self._sinks = {sink.name: sink for sink in plan.sinks if sink.name in stage.sinks and selected is None}
        self._here = frozenset(handed).union(edge for edge, to in into.items() if not to.keyed)
        self._counted = frozenset(counted).intersection(self._routers)
        self._filters = {} if selected is None else {plan.stage(selected.stage).name: selected}

    def encode(self, step: Step, state: State) -> Encoded:
        """Raises EncodingError for what cannot be stored: an output, a line of a file, or the state of a key."""
        found = Encoded(filtered=step.filtered)
        for edge, batch in step.outputs.items():
            found.emitted += len(batch)
            if edge in self._filters:
                batch = self._filters[edge].of(batch)
            if edge in self._counted:
                # What could not be sent must not be counted.
                size = sum(len(payload) for _, payload in payloads(batch, self._limits))
                found.counted.append((edge, batch.keys or [], size))
            elif edge in self._routers:
                found.rows += self.routed(edge, batch)
            elif edge in self._here:
                found.rows += [(edge, self._partition, *entry) for entry in payloads(batch, self._limits)]
            elif edge in self._sinks:
                found.lines[edge] = (encode_rows(self._sinks[edge], batch), len(batch))
            if edge in self._sinks:
                found.sunk[edge] = len(batch)
        check_state(step.changed, state, self._limits)
        return found

    def routed(self, edge: str, batch: Batch) -> Iterator[tuple[str, int, int, bytes]]:
        """The rows of these records for an exchange. Raises EncodingError."""
        are_own = are_own_keys(batch)
        for number, part in self._routers[edge].split(batch).items():
            if are_own:
                part.keys = None
            yield from ((edge, number, *entry) for entry in payloads(part, self._limits))


def check_state(changed: Mapping[str, Collection[Any]], state: State, limits: Limits) -> None:
    """Raises EncodingError when the state of a changed key cannot be stored, in the words of the live engine."""
    for operator, keys in changed.items():
        held = state[operator]
        try:
            if len(encode_value(list(map(held.get, keys)))) <= limits.record_bytes:
                continue
        except EncodingError:
            pass  # which one it is, is found below
        present = [key for key in keys if key in held]
        for key, value in zip(present, encode_values([held[key] for key in present]), strict=True):
            if len(value) > limits.record_bytes:
                raise EncodingError(f"the state of key {key!r} in {operator!r} has {len(value)} bytes")


class TaskFiles:
    """The staging files of one task. Each attempt has names of its own; those of one that failed are never named."""

    def __init__(self, job: str, sinks: Sequence[SinkPlan], stage: int, partition: int) -> None:
        self._job = job
        self._sinks = {sink.name: sink for sink in sinks if sink.format in FILE_FORMATS}
        self._rotations: dict[str, Rotation | None] = {name: rotation_of(sink) for name, sink in self._sinks.items()}
        self._place = (stage, partition, secrets.randbelow(_MOST_TERM))
        self._attempts: dict[str, int] = {}
        self._open: dict[str, StagingFile] = {}
        self._sizes: dict[str, int] = {}
        self._full: list[tuple[str, StagedFacts]] = []

    def write(self, lines: Mapping[str, tuple[bytes, int]]) -> None:
        """Raises SinkError. Blocks on the disk."""
        for sink, (data, records) in lines.items():
            if not records:
                continue
            file = self._open.get(sink)
            if file is None:
                attempt = self._attempts[sink] = self._attempts.get(sink, -1) + 1
                file = self._open[sink] = StagingFile.create(self._sinks[sink], self._job, *self._place, attempt)
                self._sizes[sink] = 0
            file.write_rows(data, records)
            self._sizes[sink] += len(data)
            rotation = self._rotations[sink]
            if rotation is not None and rotation.most_bytes is not None and self._sizes[sink] >= rotation.most_bytes:
                self._end(sink)

    def finish(self) -> Iterator[tuple[str, StagedFacts]]:
        """(sink, file) of all files, durably on the disk. Raises SinkError."""
        for sink in list(self._open):
            self._end(sink)
        yield from self._full

    def close(self) -> None:
        """What `finish` has not given does not count."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _end(self, sink: str) -> None:
        file = self._open.pop(sink)
        self._full.append((sink, file.sync()))
        file.close()
