"""How the processes that run tasks get the pipeline: from its file, as workers do, or as a graph that Spark carries."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from pipeline.api import Pipeline
from pipeline.errors import PipelineError
from pipeline.graph import Graph, Node, Sink, Source, Transform
from pipeline.loader import load_graph
from pipeline.plan import fingerprint

_KEPT_RUNS = 4

_loaded: dict[tuple[str, str], Graph] = {}
"""(run, file) -> its graph, for the tasks that follow in this process. Oldest first."""


@dataclass(frozen=True, slots=True)
class FileDefinition:
    """The pipeline's file, which each host has at this place; `folder` is where the run was started."""

    target: str
    folder: str
    fingerprint: str

    @contextmanager
    def opened(self, run: str) -> Iterator[Graph]:
        """The graph; meanwhile the current folder is that of the run, where it is there. Raises PipelineError."""
        before = Path.cwd()
        if Path(self.folder).is_dir():
            os.chdir(self.folder)
        try:
            yield self._graph(run)
        finally:
            os.chdir(before)

    def _graph(self, run: str) -> Graph:
        graph = _loaded.get((run, self.target))
        if graph is None:
            graph = load_graph(self.target)
            if fingerprint(graph) != self.fingerprint:
                raise PipelineError(
                    f"{self.target} is another pipeline where Spark runs it than where it was started",
                    hint="each host must have the same file at the same path, and what it reads from its environment",
                )
            while len(_loaded) >= _KEPT_RUNS:
                del _loaded[next(iter(_loaded))]
            _loaded[(run, self.target)] = graph
        return graph


@dataclass(frozen=True, slots=True)
class GraphDefinition:
    """A pipeline that was made in the program itself: Spark carries its functions, as it does any others."""

    graph: Graph

    @contextmanager
    def opened(self, run: str) -> Iterator[Graph]:
        yield self.graph


Definition: TypeAlias = FileDefinition | GraphDefinition


def define(subject: str | Path | Pipeline | Graph) -> tuple[Graph, Definition]:
    """The graph as this process needs it, and how the others get it. Raises PipelineError."""
    if isinstance(subject, str | Path):
        target = str(subject)
        graph = load_graph(target)
        path, colon, name = target.rpartition(":")
        is_named = bool(colon) and not Path(target).exists() and "/" not in name
        whole = f"{Path(path).resolve()}:{name}" if is_named else str(Path(target).resolve())
        return graph, FileDefinition(whole, str(Path.cwd()), fingerprint(graph))
    graph = subject.graph() if isinstance(subject, Pipeline) else subject
    return graph, GraphDefinition(replace(graph, nodes=tuple(map(_without_ends, graph.nodes))))


def _left_with_the_driver(_frame: Any) -> Any:
    """A function of frames may hold a frame, or the session, and neither can be carried."""
    raise AssertionError("tasks run no functions of frames")


def _without_ends(node: Node) -> Node:
    """Without what only the driver needs: what makes the input, functions of frames, addresses with their secrets."""
    if isinstance(node, Source):
        return replace(node, spec=replace(node.spec, items=None, fn=None, secrets={}))
    if isinstance(node, Sink):
        return replace(node, spec=replace(node.spec, fn=None, secrets={}))
    if isinstance(node, Transform):
        return replace(node, fn=_left_with_the_driver)
    return node
