"""What all partitions of a stage share in one worker. Data, and what follows from it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from pipeline.kernel.stage import StageKernel
from pipeline.plan import Plan, StagePlan
from pipeline.sinks.links import SinkLinks
from pipeline.store.jobs import JobStore
from pipeline.store.ownership import Ownership
from stages.commits_seen import CommitsSeen
from stages.encoding import StepEncoder


@dataclass(frozen=True, slots=True)
class StageContext:
    """One stage of one job, as this worker runs it."""

    job: str
    plan: Plan
    stage: StagePlan
    kernel: StageKernel
    encoder: StepEncoder
    ownership: Ownership
    links: SinkLinks
    rng: random.Random
    seen: CommitsSeen

    def staged_files(self) -> dict[str, list[bytes]]:
        """Sink -> the facts of the job's staging files that its commits name. Raises StoreError."""
        return JobStore(self.ownership.scripts).staged_files(self.job)

    def expected_senders(self) -> frozenset[str]:
        """Those whose promises make the watermark of a partition; an entry stage hears of its end from the leader."""
        if not self.stage.upstream:
            return frozenset({"source"})
        upstream = (self.plan.stage(index) for index in self.stage.upstream)
        return frozenset(f"{stage.index}.{number}" for stage in upstream for number in range(stage.partitions))
