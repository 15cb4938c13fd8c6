"""A job and its shadow in one process, stepped by hand: what `celeriac shadow` does without processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline import Pipeline
from pipeline.graph import Graph
from pipeline.operations import About, Claim, Phase
from pipeline.plan import fingerprint
from pipeline.shadowing.carrying import Candidate, Shadowing, make_shadow
from pipeline.shadowing.holding import held_back
from pipeline.store.claims import ClaimStore
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts
from pipeline.store.shadows import ShadowStore
from pipeline.versions import Version
from tests.runtime.harness import LocalJob

CODE = "c0de00000002"


@dataclass(frozen=True)
class Held:
    """A pipeline whose graph is held back."""

    flow: Pipeline

    def graph(self) -> Graph:
        return held_back(self.flow.graph())


def begin(job: LocalJob, scripts: Scripts | None = None) -> Claim:
    about = About("shadow", by="me@here", code=CODE, file="new.py")
    return ClaimStore(scripts or job._scripts).undertake(job.job, about, Phase.COPYING)


@dataclass
class Pair:
    """The job, and a shadow of it with one worker. `close` takes the shadow away, as its command does.

    scripts: what the command uses; by default what the job does.
    """

    job: LocalJob
    flow: Pipeline
    folder: Path
    room_bytes: int = 1 << 20
    options: dict[str, Any] = field(default_factory=dict)
    scripts: Scripts | None = None

    def __post_init__(self) -> None:
        self.scripts = self.scripts or self.job._scripts
        self.claim = begin(self.job, self.scripts)
        graph = self.flow.graph()
        version = Version("shadow", CODE, fingerprint(graph), "new.py", "me@here")
        candidate = Candidate(graph, version, self.room_bytes, **self.options)
        self.one: Shadowing = make_shadow(self.scripts, self.claim, candidate, self.folder)
        self.shadow = LocalJob(self.job.url, Held(self.flow), job=self.one.shadow, exists=True)  # type: ignore[arg-type]
        self.shadow.assign(is_told=False)

    @property
    def store(self) -> ShadowStore:
        return ShadowStore(self.scripts or self.job._scripts, self.job.job)

    def work(self) -> None:
        """Both work, and are compared, until nothing is left to do."""
        while True:
            self.job.run_until_idle()
            done = self.one.step()
            self.shadow.run_until_idle()
            if not done and not self.one.step():
                return

    def promote(self) -> None:
        """At this place."""
        record = JobStore(self.job._scripts).read(self.job.job)
        self.one.hold(record)
        self.work()
        assert self.one.is_quiet()
        assert self.one.try_to_promote("/new.py")

    def close(self, outcome: str = "dropped") -> None:
        self.shadow.client.close()
        assert self.store.take_away(self.claim.token, is_own=True, outcome=outcome)


def goes_on(job: LocalJob, flow: Pipeline) -> LocalJob:
    """The promoted job in the hands of workers of the new version; its outputs are read on."""
    found = LocalJob(job.url, flow, job=job.job, exists=True)
    found.token = job.token
    found.leader = job.leader
    found._lanes = job._lanes
    found.outputs = job.outputs
    found.assign("n0")
    return found
