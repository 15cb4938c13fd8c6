"""One stage as a pure function: a batch or due timers, and the state, go in; what to commit comes out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from pipeline.errors import EncodingError, PipelineError, ProgramError
from pipeline.graph import External, Filter, Graph, Keyed, Sink, Source, Transform
from pipeline.kernel import chain
from pipeline.kernel.contract import Runner, Step, TimerChanges
from pipeline.kernel.faults import OperatorError, is_of_user_code
from pipeline.plan import StagePlan
from pipeline.records import MAX_TIME, Batch, Timer

State = dict[str, dict[Any, Any]]
"""Operator -> key -> state: all keyed operators of the stage, and of each the keys in hand that have any."""

Carried = External | Transform
"""What the carrier runs, and not the kernel: a program, or a function of DataFrames."""

Member = chain.Stateless | Keyed | Carried | Sink

_NO_RUNNERS: Final[Mapping[str, Runner]] = MappingProxyType({})


@dataclass(slots=True)
class _Work:
    """What a step has gathered so far. `earliest` is the place in firing order of the first timer it set."""

    outputs: dict[str, list[Batch]] = field(default_factory=dict)
    changed: dict[str, set[Any]] = field(default_factory=dict)
    timers: dict[tuple[str, Any, int], bool] = field(default_factory=dict)
    earliest: tuple[int, int] = (MAX_TIME + 1, 0)
    filtered: int = 0

    def step(self) -> Step:
        return Step(
            {edge: chain.concatenate(batches) for edge, batches in self.outputs.items()},
            self.changed,
            [Timer(*timer) for timer, is_set in self.timers.items() if is_set],
            [Timer(*timer) for timer, is_set in self.timers.items() if not is_set],
            self.filtered,
        )


class StageKernel:
    """Runs the nodes of one stage. Immutable, so threads may share it; touches nothing but its arguments.

    Carried operators are the exception: each is run by the carrier's runner of its name.

    Batches must be free of faults. Batches that went in or came out share columns, and must not be changed.
    Raises OperatorError when an operator's code fails; the state is then half changed and must be dropped.
    """

    keyed_operators: tuple[str, ...]
    """Names of the stateful operators, upstream first."""
    carried: tuple[Carried, ...]
    """Operators that are given whole batches: a call costs much the same for one record as for many. Upstream first."""

    def __init__(self, graph: Graph, plan: StagePlan, runners: Mapping[str, Runner] = _NO_RUNNERS) -> None:
        """Raises PipelineError for a carried operator without a runner."""
        inside = frozenset(plan.nodes)
        self._root = plan.nodes[0]
        self._edges = frozenset(plan.exchanges) | frozenset(plan.sinks)
        self._members: tuple[Member, ...] = tuple(
            node
            for node in graph.nodes
            if node.name != self._root
            and not isinstance(node, Source)
            and (node.name in inside or node.name in plan.exchanges)
        )
        self.carried = tuple(node for node in self._members if isinstance(node, Carried))
        self._runners = {node.name: _runner(node, runners) for node in self.carried}
        self._children: dict[str, list[str]] = {name: [] for name in plan.nodes}
        for node in self._members:
            for source in node.inputs:
                if source in inside:
                    self._children[source].append(node.name)
        self._keyed = {node.name: node for node in self._members if isinstance(node, Keyed)}
        self.keyed_operators = tuple(self._keyed)
        self._rank = {name: place for place, name in enumerate(self._keyed)}

    @property
    def needs_session(self) -> bool:
        """Whether it has an operator of DataFrames."""
        return any(isinstance(node, Transform) for node in self.carried)

    @property
    def has_fixed_cost(self) -> bool:
        """Whether each batch has a price, whatever its size: that of starting a program."""
        return any(isinstance(node, External) and node.protocol == "lines" for node in self.carried)

    def process(self, batch: Batch, state: State) -> Step:
        """Pushes an inbox batch through the stage. Edges that nothing reaches are absent from the outputs.

        `state` is changed in place.
        """
        work = _Work()
        self._flow(self._root, batch, state, work)
        return work.step()

    def fire(self, timers: Sequence[Timer], state: State) -> Step:
        """Fires due timers in due order, upstream operators first; `state` is changed in place.

        Outputs carry the due time as event time; those of the end of input (MAX_TIME) alone carry none. What
        fired is in `timers_cleared`, together with what the operators cleared; a timer that an earlier one
        cleared does not fire. It stops early when a timer was set that must fire before the next one, and
        leaves the rest as it was: commit, and fire what is due then, until nothing is. At least one fires.

        Raises PipelineError for a timer of an operator that is not in this stage.
        """
        work = _Work()
        for operator, run in self._runs(timers):
            if work.earliest < (run[0].due, self._rank[operator]):
                break
            pending = [timer for timer in run if work.timers.get((operator, timer.key, timer.due), True)]
            if pending:
                self._fire_run(operator, pending, state, work)
        return work.step()

    def emit(self, operator: str, batch: Batch, state: State) -> Step:
        """What follows when the operator emits these; `state` is changed in place."""
        work = _Work()
        self._flow(operator, batch, state, work)
        return work.step()

    def _runs(self, timers: Sequence[Timer]) -> Iterator[tuple[str, list[Timer]]]:
        """In firing order, cut where the operator changes or a key comes again: the first may clear it."""
        for operator in dict.fromkeys(timer.operator for timer in timers):
            if operator not in self._rank:
                raise PipelineError(
                    f"a timer of {operator!r} is due, but stage {self._root!r} has no such operator",
                    hint="keep the names of stateful operators when a pipeline continues an earlier job",
                )
        moments = {(timer.due, timer.operator) for timer in timers}
        if len(moments) == 1 and len({timer.key for timer in timers}) == len(timers):  # as at the end of input
            yield timers[0].operator, list(timers)
            return
        run: list[Timer] = []
        seen: set[Any] = set()
        for timer in sorted(timers, key=lambda timer: (timer.due, self._rank[timer.operator])):
            if run and (timer.operator != run[0].operator or timer.key in seen):
                yield run[0].operator, run
                run, seen = [], set()
            run.append(timer)
            seen.add(timer.key)
        if run:
            yield run[0].operator, run

    def _fire_run(self, operator: str, run: list[Timer], state: State, work: _Work) -> None:
        keys = [timer.key for timer in run]
        dues = [timer.due for timer in run]
        for timer in run:
            work.timers[(operator, timer.key, timer.due)] = False
        changes = TimerChanges(operator)
        fired = Batch(dues, keys, dues if dues[0] < MAX_TIME else None)
        try:
            emitted = self._keyed[operator].operator.on_timer(keys, dues, state[operator], changes)
            out = chain.inherit(operator, fired, emitted)
        except BaseException as error:
            if not is_of_user_code(error):
                raise
            raise OperatorError(operator, error) from error
        self._note(operator, keys, changes, work)
        self._flow(operator, out, state, work)

    def _flow(self, start: str, batch: Batch, state: State, work: _Work) -> None:
        """Hands what `start` emitted on to its children, and theirs, in the order of the graph."""
        arrived: dict[str, list[Batch]] = {}
        self._hand_on(start, batch, arrived)
        for node in self._members:
            if not arrived:
                return
            batches = arrived.pop(node.name, None)
            if batches is None:
                continue
            out = self._apply(node, chain.concatenate(batches), state, work)
            if node.name in self._edges:
                work.outputs.setdefault(node.name, []).append(out)
            else:
                self._hand_on(node.name, out, arrived)

    def _hand_on(self, name: str, batch: Batch, arrived: dict[str, list[Batch]]) -> None:
        if batch.values:
            for child in self._children[name]:
                arrived.setdefault(child, []).append(batch)

    def _apply(self, node: Member, batch: Batch, state: State, work: _Work) -> Batch:
        if isinstance(node, Sink):
            return batch
        if isinstance(node, Carried):
            return self._run_carried(node, batch)
        try:
            if isinstance(node, Keyed):
                return self._apply_keyed(node, batch, state, work)
            out = chain.apply(node, batch)
        except BaseException as error:
            if not is_of_user_code(error):
                raise
            raise OperatorError(node.name, error) from error
        if isinstance(node, Filter):
            work.filtered += len(batch) - len(out)
        return out

    def _run_carried(self, node: Carried, batch: Batch) -> Batch:
        try:
            return self._runners[node.name](batch)
        except (ProgramError, EncodingError) as error:
            raise OperatorError(node.name, error) from error

    def _apply_keyed(self, node: Keyed, batch: Batch, state: State, work: _Work) -> Batch:
        changes = TimerChanges(node.name)
        keys = chain.keys_of(node.name, batch)
        emitted = node.operator.process(keys, batch.values, state[node.name], changes)
        self._note(node.name, keys, changes, work)
        return chain.inherit(node.name, batch, emitted)

    def _note(self, operator: str, keys: list[Any], changes: TimerChanges, work: _Work) -> None:
        changed = work.changed.setdefault(operator, set())
        changed.update(keys)
        rank = self._rank[operator]
        for (key, due), is_set in changes.changes.items():
            work.timers[(operator, key, due)] = is_set
            if is_set and (due, rank) < work.earliest:
                work.earliest = (due, rank)


def _runner(node: Carried, runners: Mapping[str, Runner]) -> Runner:
    if node.name not in runners:
        what = "runs a program, and this engine runs none"
        if isinstance(node, Transform):
            what = "works on DataFrames, and this engine has none"
        raise PipelineError(f"operator {node.name!r} {what}")
    return runners[node.name]
