"""Which output stream, stage and operators are meant, from a plan and the names that a user gives. Pure."""

from __future__ import annotations

from pipeline.errors import ReadingError
from pipeline.plan import STREAM_FORMATS, Plan, SinkPlan, StagePlan, StatePlan, readable_names, stream_name
from pipeline.store.connection import without_password
from pipeline.validation import suggestion


def choose_output(plan: Plan, job: str, name: str | None) -> str:
    """The output stream of that sink or stream name, or the only one. Raises ReadingError."""
    streams = readable_names(plan)
    if name is None:
        if len(streams) == 1:
            return streams[0]
        if streams:
            raise ReadingError(f"the job {job!r} has several outputs to read: {', '.join(streams)}", hint="name one")
        raise ReadingError(f"the job {job!r} has no output to read{_where(plan)}", hint="give it a write.stream(...)")
    if name in streams:
        return name
    for sink in plan.sinks:
        if sink.name == name:
            if sink.format in STREAM_FORMATS:
                return stream_name(sink)
            raise ReadingError(f"{_described(sink)}, which is not read here", hint=_published_hint(sink))
    known = [*streams, *(sink.name for sink in plan.sinks if sink.name not in streams)]
    raise ReadingError(f"the job {job!r} has no sink {name!r}", hint=suggestion(name, known))


def _where(plan: Plan) -> str:
    return "".join(f"; {_described(sink)}" for sink in plan.sinks)


def _described(sink: SinkPlan) -> str:
    place = without_password(sink.path) or (f"the table {sink.options['table']}" if "table" in sink.options else "")
    return f"the sink {sink.name!r} writes {sink.format}" + (f" to {place}" if place else "")


def _published_hint(sink: SinkPlan) -> str:
    return f"see {without_password(sink.path)}; a folder of files appears when the job ends" if sink.path else ""


def choose_stage(plan: Plan, job: str, name: str | int) -> tuple[StagePlan, tuple[StatePlan, ...]]:
    """The keyed stage, and those of its operators with state that are meant.

    `name` is the stage's number, its name (that of its key_by), or that of an operator in it; an operator with state
    is meant alone. Raises ReadingError.
    """
    for state in states_of(plan):
        if state.operator == name:
            return plan.stage(state.stage), (state,)
    stage = _stage(plan, job, name)
    if not stage.keyed:
        raise ReadingError(
            f"the stage {stage.index} ({stage.name!r}) of job {job!r} has no keys, so it keeps no state",
            hint=suggestion("", [f"{other.index} ({other.name})" for other in plan.stages if other.keyed]),
        )
    return stage, tuple(state for state in states_of(plan) if state.stage == stage.index)


def _stage(plan: Plan, job: str, name: str | int) -> StagePlan:
    inside = [stage for stage in plan.stages if name in stage.nodes]
    for stage in inside:
        if stage.name == name or len(inside) == 1:
            return stage
    if inside:
        raise ReadingError(
            f"the operator {name!r} of job {job!r} is in several stages",
            hint=f"name one: {', '.join(stage.name for stage in inside)}",
        )
    if str(name).isdecimal() and int(name) < len(plan.stages):
        return plan.stage(int(name))
    known = [stage.name for stage in plan.stages if stage.keyed]
    raise ReadingError(f"the job {job!r} has no stage {name!r}", hint=suggestion(str(name), known))


def choose_operator(plan: Plan, stage: StagePlan, name: str) -> StatePlan:
    """The operator of that name in the stage. Raises ReadingError if it is not there, or has no state."""
    states = [state for state in states_of(plan) if state.stage == stage.index]
    for state in states:
        if state.operator == name:
            return state
    known = [state.operator for state in states]
    raise ReadingError(f"the stage {stage.name!r} has no operator {name!r} with state", hint=suggestion(name, known))


def states_of(plan: Plan) -> tuple[StatePlan, ...]:
    """Every operator with state, upstream first. Plans of older programs do not say: all that may have any."""
    return plan.states or tuple(
        StatePlan(node, stage.index)
        for stage in plan.stages
        if stage.keyed
        for node in stage.nodes
        if node != stage.name and node not in stage.sinks
    )
