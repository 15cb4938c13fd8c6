"""Turns what a step gives into what its commit writes: routed output entries, state by key group, timers.

Batches are encoded whole. A record that cannot be stored raises EncodingError with nothing written.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from pipeline.codec import encode_values, state_fields, timer_member
from pipeline.errors import EncodingError
from pipeline.kernel.contract import Step
from pipeline.keying import GROUPS, group_of, groups_of
from pipeline.plan import STREAM_FORMATS, Plan, StagePlan, echo_name, stream_name
from pipeline.records import Batch
from pipeline.routing import Router, payloads
from pipeline.store import keys
from pipeline.store.commits import Output, Target, Write
from stages.cache import StateCache


class StepEncoder:
    """Encodes the steps of one stage of one job."""

    def __init__(self, job: str, plan: Plan, stage: StagePlan) -> None:
        self._job = job
        self._limits = plan.limits
        self._stage = stage
        self._groups = [keys.state(job, stage.index, group) for group in range(GROUPS)]
        self._routers = {edge: Router(plan.stage(to).serving) for edge, to in stage.exchanges.items()}
        self._inboxes = {
            edge: [Target.partition(job, to, number) for number in range(plan.stage(to).serving)]
            for edge, to in stage.exchanges.items()
        }
        streams = {sink.name: stream_name(sink) for sink in plan.sinks if sink.format in STREAM_FORMATS}
        self._streams = {name: Target.stream(job, streams[name]) for name in stage.sinks if name in streams}
        self._echoes = {
            name: Target.stream(job, echo_name(name), is_counted=False) for name in stage.sinks if plan.has_echoes
        }

    def everywhere(self) -> list[Target]:
        """Every target of the stage: control goes to all of them."""
        return [target for targets in self._inboxes.values() for target in targets] + list(self._streams.values())

    def outputs(self, step: Step) -> dict[Target, list[Output]]:
        """The entries for inboxes and output streams. Raises EncodingError."""
        found: dict[Target, list[Output]] = {}
        for edge, batch in step.outputs.items():
            if edge in self._routers:
                targets = self._inboxes[edge]
                for number, part in self._routers[edge].split(batch).items():
                    found.setdefault(targets[number], []).extend(self._entries(part))
            elif edge in self._streams:
                found.setdefault(self._streams[edge], []).extend(self._entries(batch))
        for edge in self._echoes.keys() & step.outputs.keys():
            found.setdefault(self._echoes[edge], []).extend(self._entries(step.outputs[edge]))
        return found

    def _entries(self, batch: Batch) -> list[Output]:
        return [Output("D", records, None, payload) for records, payload in payloads(batch, self._limits)]

    def state(self, step: Step, cache: StateCache) -> list[Write]:
        """The changed keys by key group. Raises EncodingError for a state that cannot be stored."""
        sets: defaultdict[int, list[bytes]] = defaultdict(list)
        gone: defaultdict[int, list[bytes]] = defaultdict(list)
        for operator, changed in step.changed.items():
            held = cache.state[operator]
            without = changed.difference(held)
            kept = list(changed - without if without else changed)
            values = encode_values([held[key] for key in kept])
            sizes = list(map(len, values))
            if max(sizes, default=0) > self._limits.record_bytes:
                raise self._too_large(operator, kept, sizes)
            for group, field, value in zip(groups_of(kept), state_fields(operator, kept), values, strict=True):
                sets[group] += (field, value)
            cache.note_sizes(operator, kept, sizes)
            if without:
                dropped = list(without)
                for group, field in zip(groups_of(dropped), state_fields(operator, dropped), strict=True):
                    gone[group].append(field)
                cache.note_gone(operator, dropped)
        writes = [Write("HSET", self._groups[group], values) for group, values in sets.items()]
        return writes + [Write("HDEL", self._groups[group], fields) for group, fields in gone.items()]

    def _too_large(self, operator: str, keys_: list[Any], sizes: list[int]) -> EncodingError:
        key, size = next(
            (key, size) for key, size in zip(keys_, sizes, strict=True) if size > self._limits.record_bytes
        )
        return EncodingError(f"the state of key {key!r} in {operator!r} has {size} bytes")

    def timers(self, step: Step) -> list[Write]:
        """The changes of the timer index."""
        cleared: dict[tuple[str, int], list[Any]] = {}
        fresh: dict[tuple[str, int], list[Any]] = {}
        for timer in step.timers_cleared:
            cleared.setdefault((timer.operator, group_of(timer.key)), []).append(timer_member(timer))
        for timer in step.timers_set:
            fresh.setdefault((timer.operator, group_of(timer.key)), []).extend((timer.due, timer_member(timer)))
        job, index = self._job, self._stage.index
        writes = [Write("ZREM", keys.timers(job, index, *at), values) for at, values in cleared.items()]
        return writes + [Write("ZADD", keys.timers(job, index, *at), values) for at, values in fresh.items()]
