"""What a pipeline must satisfy before it may run: names, functions, options, paths and the whole graph.

Every fault is a PipelineError naming the operator or argument. Nothing here reads a file or changes a graph.
"""

from __future__ import annotations

import difflib
import glob
import inspect
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final

from pipeline.errors import PipelineError
from pipeline.graph import External, Graph, KeyBy, Keyed, MapWithKey, Node, Sink, Source, Transform, Union
from pipeline.programs.checking import check_program, lines_lose_keys
from pipeline.wording import counted

NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
"""A name becomes part of Redis keys, queue names and file names: it stays within what all of them take."""

MOST_FRAME_RECORDS: Final = 1_000_000
"""Of one DataFrame: it is held in memory, as records, as columns and in the JVM."""

_LARGEST: Final = 2**63


def check_name(name: object, what: str) -> str:
    """The name itself. Raises PipelineError, with `what` it should have named, when it may not be used."""
    if isinstance(name, str) and NAME.fullmatch(name):
        return name
    raise PipelineError(
        f"{name!r} cannot be the name of {what}",
        hint="use 1 to 64 letters, digits, '_' or '-', with a letter first",
    )


def check_pool(name: object, operator: str) -> str:
    """The name of the pool itself. Raises PipelineError that names the operator."""
    return check_name(name, f"the pool of operator {operator!r}")


def suggestion(name: str, known: Sequence[str]) -> str:
    """A hint with the known name that `name` was probably meant to be, or with all known names."""
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"there are: {', '.join(known)}" if known else ""


def check_function(fn: object, parameters: Sequence[str], operator: str) -> None:
    """Raises PipelineError unless fn takes these positional parameters, as far as Python can tell."""
    wanted = f"operator {operator!r} needs a function of ({', '.join(parameters)})"
    if isinstance(fn, Iterator):
        raise PipelineError(
            f"{wanted}, not a {type(fn).__name__}: that runs only once, and a retry runs again",
            hint="give the function itself, without calling it",
        )
    if not callable(fn):
        raise PipelineError(f"{wanted}, not {_shown(fn)}")
    if inspect.iscoroutinefunction(fn):
        raise PipelineError(f"{wanted}; {_called(fn)} is async", hint="write it with def, not async def")
    try:
        signature = inspect.signature(fn)
    except (ValueError, TypeError):
        return  # many builtins, such as int, do not tell
    try:
        signature.bind(*parameters)
    except TypeError as error:
        raise PipelineError(
            f"{wanted}; {_called(fn)}{signature} does not fit: {error}",
            hint=f"make it take {counted(len(parameters), 'positional parameter')}",
        ) from error


def check_plain_function(fn: object, parameters: Sequence[str], operator: str) -> None:
    """As check_function, and refuses a function with `yield`: its generator would be taken as the value."""
    check_function(fn, parameters, operator)
    if inspect.isgeneratorfunction(fn):
        raise PipelineError(
            f"operator {operator!r} takes one value from its function, but {_called(fn)} uses yield",
            hint="return the value, or use flat_map for several values",
        )


def _called(fn: object) -> str:
    return str(getattr(fn, "__qualname__", type(fn).__name__)).rpartition("<locals>.")[2]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def check_options(options: object, owner: str) -> None:
    """Raises PipelineError, naming the field, for a value that JSON does not have: options are stored."""
    if not isinstance(options, dict):
        raise PipelineError(f"{owner}: the options must be a dict, not {_shown(options)}")
    for field, value in options.items():
        place = _misfit(value, str(field)) if isinstance(field, str) else (repr(field), field)
        if place is not None:
            raise PipelineError(
                f"{owner}: the option {place[0]!r} cannot be stored: {_shown(place[1])} is no JSON value",
                hint="use text, finite numbers, True, False, None, and lists and dicts of these",
            )


def _misfit(value: Any, place: str) -> tuple[str, Any] | None:
    """The place and value of the first part that JSON does not have, or None."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        return None if is_unicode(value) else (place, value)
    if isinstance(value, int):
        return None if -_LARGEST <= value < _LARGEST else (place, value)
    if isinstance(value, float):
        return None if math.isfinite(value) else (place, value)
    if isinstance(value, list):
        parts = [(item, f"{place}[{index}]") for index, item in enumerate(value)]
    elif isinstance(value, dict) and all(isinstance(name, str) for name in value):
        parts = [(item, f"{place}.{name}") for name, item in value.items()]
    else:
        return place, value
    return next((found for found in (_misfit(*part) for part in parts) if found is not None), None)


def checked_seconds(seconds: object, field: str, owner: str) -> float:
    """The pause as a float. Raises PipelineError unless it is a number from a hundredth of a second to a day."""
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0.01 <= seconds <= 86_400:
        return float(seconds)
    raise PipelineError(f"{owner}: {field} must be a number of seconds from 0.01 to 86,400, not {_shown(seconds)}")


def is_unicode(text: str) -> bool:
    """False for text with lone surrogates, which no encoding takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def absolute_path(path: object, owner: str) -> str:
    """The path, made absolute from the current folder of this moment. It need not exist."""
    if not isinstance(path, str | os.PathLike):
        raise PipelineError(f"{owner}: the path must be text or a Path, not {_shown(path)}")
    text = os.fspath(path)
    if not isinstance(text, str) or not text or "\0" in text or not is_unicode(text):
        raise PipelineError(f"{owner}: {text!r} cannot be a path")
    if "://" in text:
        raise PipelineError(
            f"{owner}: {text!r} is an address, not a path of this machine",
            hint="give the path of a local or mounted file, folder or glob",
        )
    return os.path.abspath(text)  # noqa: PTH100 - Path.absolute() would keep '..'


def check(graph: Graph) -> None:
    """Raises PipelineError for the first thing that keeps this graph from running."""
    check_name(graph.name, "a pipeline")
    nodes = _by_name(graph)
    for node in graph.nodes:
        _check_inputs(node, nodes)
    _check_order(graph, nodes)
    _check_ends(graph)
    _check_keys(graph)
    for node in graph.nodes:
        if isinstance(node, Source | Sink):
            check_options(node.spec.options, f"operator {node.name!r}")
    _check_paths(graph)


def _by_name(graph: Graph) -> dict[str, Node]:
    nodes: dict[str, Node] = {}
    for node in graph.nodes:
        check_name(node.name, "an operator")
        if node.name in nodes:
            raise duplicate(node.name)
        nodes[node.name] = node
    return nodes


def duplicate(name: str) -> PipelineError:
    """The error for a name that is used twice."""
    return PipelineError(
        f"two operators are named {name!r}",
        hint="state belongs to the name: give each operator its own, with name=",
    )


def _check_inputs(node: Node, nodes: Mapping[str, Node]) -> None:
    for name in node.inputs:
        if name not in nodes:
            raise PipelineError(
                f"operator {node.name!r} reads from {name!r}, which is not in the pipeline",
                hint=suggestion(name, [other for other in nodes if other != node.name]),
            )
        if isinstance(nodes[name], Sink):
            raise PipelineError(f"operator {node.name!r} reads from the sink {name!r}; a sink has no output")
    count = len(node.inputs)
    if isinstance(node, Union):
        if count < 2 or len(set(node.inputs)) < count:
            raise PipelineError(f"the union {node.name!r} needs two or more streams, each of them once")
    elif not isinstance(node, Source) and count != 1:
        raise PipelineError(f"operator {node.name!r} has {count} inputs; it takes one", hint="join streams with union")


def _check_order(graph: Graph, nodes: Mapping[str, Node]) -> None:
    """Refuses a cycle, and an operator that stands before its input."""
    done: set[str] = set()
    late = ""
    for node in graph.nodes:
        if not done.issuperset(node.inputs):
            late = late or node.name
        done.add(node.name)
    if not late:
        return
    if loop := _cycle(nodes):
        raise PipelineError(
            f"the operators form a cycle: {' -> '.join(loop)}",
            hint="records must flow from sources to sinks; take out one of these connections",
        )
    raise PipelineError(f"operator {late!r} stands before its input in the graph")


def _cycle(nodes: Mapping[str, Node]) -> list[str]:
    """The names along one cycle, in the direction of the records, first and last equal; or nothing."""
    left = dict(nodes)
    while ready := [name for name, node in left.items() if left.keys().isdisjoint(node.inputs)]:
        for name in ready:
            del left[name]
    if not left:
        return []
    path = [next(iter(left))]
    while True:  # each node left has an input that is left, so walking upstream must meet itself
        path.append(next(name for name in left[path[-1]].inputs if name in left))
        if path[-1] in path[:-1]:
            return path[path.index(path[-1]) :][::-1]


def _check_ends(graph: Graph) -> None:
    if not any(isinstance(node, Source) for node in graph.nodes):
        raise PipelineError(f"the pipeline {graph.name!r} has no source", hint="begin with .source(read.text(...))")
    if not any(isinstance(node, Sink) for node in graph.nodes):
        raise PipelineError(
            f"the pipeline {graph.name!r} has no sink: nothing would leave {graph.nodes[-1].name!r}",
            hint="end it with .sink(write.console()) or another sink",
        )
    used = {name for node in graph.nodes for name in node.inputs}
    for node in graph.nodes:
        if not isinstance(node, Sink) and node.name not in used:
            raise PipelineError(
                f"the stream {node.name!r} of the pipeline {graph.name!r} ends nowhere: it has no sink",
                hint="end it with .sink(write.console()) or another sink, or take it out",
            )


def _check_keys(graph: Graph) -> None:
    keyed: set[str] = set()
    for node in graph.nodes:
        if isinstance(node, Keyed | MapWithKey) and node.inputs[0] not in keyed:
            raise not_keyed(node.inputs[0], f"operator {node.name!r}")
        if isinstance(node, External):
            check_program(node)
            if node.protocol == "lines" and node.inputs[0] in keyed:
                raise lines_lose_keys(node.name)
        if isinstance(node, Transform):
            check_transform(node)
            if node.inputs[0] in keyed:
                raise frames_lose_keys(node.name)
        if isinstance(node, KeyBy) or (not _drops_keys(node) and node.inputs[0] in keyed):
            keyed.add(node.name)


def _drops_keys(node: Node) -> bool:
    return isinstance(node, Source | Union) or (isinstance(node, External) and node.protocol != "json")


def check_transform(node: Transform) -> None:
    """Raises PipelineError for a size of batches that cannot be."""
    if type(node.batch) is not int or not 1 <= node.batch <= MOST_FRAME_RECORDS:
        raise PipelineError(
            f"operator {node.name!r}: batch must be a whole number from 1 to {MOST_FRAME_RECORDS:,}, "
            f"not {_shown(node.batch)}"
        )


def frames_lose_keys(operator: str) -> PipelineError:
    """The error for a DataFrame operator on a keyed stream."""
    return PipelineError(
        f"operator {operator!r} works on DataFrames, whose rows do not say which record they come from, "
        "and its stream is keyed",
        hint="put it in front of key_by",
    )


def not_keyed(stream: str, user: str) -> PipelineError:
    """The error for a keyed operator on a stream without keys."""
    return PipelineError(
        f"stream {stream!r} is not keyed; call key_by first",
        hint=f"{user} works key by key, so put .key_by(...) before it",
    )


def _check_paths(graph: Graph) -> None:
    """Refuses sinks that would replace each other's result, or replace what a source reads."""
    sinks = [node for node in graph.nodes if isinstance(node, Sink)]
    for index, sink in enumerate(sinks):
        for other in sinks[:index]:
            _check_sinks(other, sink)
    for source in graph.nodes:
        if isinstance(source, Source) and source.spec.path:
            for sink in sinks:
                if sink.spec.path and _would_replace(sink.spec.path, source.spec.path):
                    raise PipelineError(
                        f"the sink {sink.name!r} writes to {sink.spec.path}, which holds the input of the "
                        f"source {source.name!r} ({source.spec.path})",
                        hint="write to another folder",
                    )


def _check_sinks(first: Sink, second: Sink) -> None:
    both = f"the sinks {first.name!r} and {second.name!r}"
    if first.spec.format == second.spec.format == "stream" and first.spec.options == second.spec.options:
        raise PipelineError(f"{both} write the same stream", hint="give each its own name, or union the streams")
    if first.spec.path and second.spec.path:
        left, right = _real(first.spec.path), _real(second.spec.path)
        if left == right or left in right.parents or right in left.parents:
            raise PipelineError(
                f"{both} write to the same place: {first.spec.path} and {second.spec.path}",
                hint="a sink owns its whole folder: give each its own, or union the streams",
            )


def _would_replace(sink: str, source: str) -> bool:
    target = _real(sink)
    if target in (_real(source), PurePath(source)):
        return True
    if not glob.has_magic(source):
        return target in _real(source).parents
    parts = PurePath(source).parts
    magic = next(index for index, part in enumerate(parts) if glob.has_magic(part))
    fixed = _real(str(PurePath(*parts[:magic])))
    return target == fixed or target in fixed.parents or target.match(str(PurePath(fixed, *parts[magic:])))


def _real(path: str) -> PurePath:
    return PurePath(os.path.realpath(path))
