"""Live state: what the keyed operators of a job hold for their keys, as of each partition's last commit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

from pipeline.aggregates import RESULTS
from pipeline.codec import decode_value, shown
from pipeline.errors import EncodingError, ReadingError
from pipeline.keying import canonical_bytes
from pipeline.plan import Plan, StagePlan, StatePlan
from pipeline.reading.choosing import choose_operator, choose_stage
from pipeline.reading.keytext import key_text
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts
from pipeline.store.states import load_key, scan_states

_SHOWN: Final = 80


class StateValue(NamedTuple):
    """The state of one key in one operator.

    result: what the operator would emit: a mean for `mean`, a dict of results for several aggregations.
    raw: the state as it is stored; equal for all other operators, aggregations of the user's own included.
    """

    key: Any
    operator: str
    result: Any
    raw: Any


class LiveState:
    """The state of one job. `stage` is a stage's number, its name (that of its `key_by`), or an operator in it.

    Reads only; any number of threads may use it. A key is read at one moment and is whole; keys read one after the
    other are of different moments. Nothing that a worker has not committed is seen.
    """

    def __init__(self, scripts: Scripts, job: str) -> None:
        """Raises UnknownJob, DecodingError, StoreError."""
        self._client = scripts.client
        self._jobs = JobStore(scripts)
        self.job = job
        self._plan: Plan = self._jobs.read(job).plan

    def get(self, stage: str | int, key: Any, operator: str | None = None) -> StateValue | None:
        """The state of one key, or None if it has none.

        Raises ReadingError if several operators of the stage have state for it and none is named, or a name is wrong,
        or such a key cannot be; UnknownJob, StoreError.
        """
        found = self.operators(stage, key, operator)
        if len(found) > 1:
            raise ReadingError(
                f"several operators hold state for the key {shown(key, _SHOWN)}: {', '.join(found)}", hint="name one"
            )
        return next(iter(found.values()), None)

    def operators(self, stage: str | int, key: Any, operator: str | None = None) -> dict[str, StateValue]:
        """Operator -> the state of this key in it, of one moment, for those that hold any. Raises as `get` does."""
        at, states = self._chosen(stage, operator)
        try:
            canonical_bytes(key)
            raw = load_key(self._client, self.job, at.index, [state.operator for state in states], key)
        except EncodingError as error:
            raise ReadingError(str(error), hint=error.hint) from error
        if not raw:
            self._jobs.state(self.job)  # a job that is gone has no state either
        return {
            state.operator: _value(state, key, decode_value(raw[state.operator]))
            for state in states
            if state.operator in raw
        }

    def items(
        self, stage: str | int, prefix: str | None = None, limit: int | None = None, operator: str | None = None
    ) -> Iterator[StateValue]:
        """The state of all keys, in no order, read in pages while it is asked for; at most `limit`.

        What has state all the while comes once for each operator; what gets or loses its state meanwhile may come or
        not. prefix: text keys that begin so only. Raises as `get` does.
        """
        at, states = self._chosen(stage, operator)
        self._jobs.state(self.job)
        return islice(self._scan(at, states, prefix), limit)

    def keys(
        self, stage: str | int, prefix: str | None = None, limit: int | None = None, operator: str | None = None
    ) -> Iterator[Any]:
        """The keys that have state, each once, as `items` finds them."""
        at, states = self._chosen(stage, operator)
        self._jobs.state(self.job)
        return islice(self._keys(at, states, prefix), limit)

    def _keys(self, stage: StagePlan, states: tuple[StatePlan, ...], prefix: str | None) -> Iterator[Any]:
        names = {state.operator for state in states}
        # Several operators may have a key. It is in one key group, so what is remembered may go with the group.
        group, seen = -1, set[Any]()
        for at, operator, key, _ in scan_states(self._client, self.job, stage.index):
            if at != group:
                group, seen = at, set()
            if operator in names and _has_prefix(key, prefix) and key not in seen:
                seen.add(key)
                yield key

    def _scan(self, stage: StagePlan, states: tuple[StatePlan, ...], prefix: str | None) -> Iterator[StateValue]:
        known = {state.operator: state for state in states}
        for _, operator, key, data in scan_states(self._client, self.job, stage.index):
            if operator in known and _has_prefix(key, prefix):
                yield _value(known[operator], key, decode_value(data))

    def _chosen(self, stage: str | int, operator: str | None) -> tuple[StagePlan, tuple[StatePlan, ...]]:
        at, states = choose_stage(self._plan, self.job, stage)
        return at, states if operator is None else (choose_operator(self._plan, at, operator),)


def missing_key(stage: str | int, key: Any) -> ReadingError:
    """What to say of a key without state. A number and its digits as text are different keys, easily mixed up."""
    hint = ""
    if isinstance(key, int):
        hint = f"the text is another key: give it as '\"{key}\"'"
    elif isinstance(key, str) and key.lstrip("-").isdecimal():
        hint = f"the number is another key: give it as {key}"
    return ReadingError(f"there is no state for the key {key_text(key)} in {stage}", hint=hint)


def _has_prefix(key: Any, prefix: str | None) -> bool:
    return prefix is None or (isinstance(key, str) and key.startswith(prefix))


def _value(state: StatePlan, key: Any, raw: Any) -> StateValue:
    return StateValue(key, state.operator, result_of(state, raw), raw)


def result_of(state: StatePlan, raw: Any) -> Any:
    """The result that a state stands for; for several aggregations a dict. What is not known stays as it is."""
    kinds = state.aggregates
    try:
        if isinstance(kinds, dict):
            return {name: _result(kind, part) for (name, kind), part in zip(kinds.items(), raw, strict=True)}
        return raw if kinds is None else _result(kinds, raw)
    except (TypeError, ValueError, LookupError, ArithmeticError):
        return raw  # the job goes on with a file that aggregates otherwise under the same name


def _result(kind: str, raw: Any) -> Any:
    return RESULTS[kind](raw) if kind in RESULTS else raw
