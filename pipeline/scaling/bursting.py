"""Which partitions the autoscaler would have Spark work off: those that are too far behind for any number of workers.

Pure. It knows nothing of Spark's speed: that a burst is faster is what whoever sets the target says.
"""

from __future__ import annotations

import math

from pipeline.facts import JobFacts
from pipeline.scaling.load import Load, StageLoad
from pipeline.scaling.policies import BurstWish
from pipeline.scaling.settings import Scaling


def burst_wish(facts: JobFacts, load: Load, scaling: Scaling) -> BurstWish | None:
    """The partitions of one stage, the one that is furthest behind, that would need longer than the target.

    None while an operation is under way, or when a burst has ended within the cooldown.
    """
    target = scaling.burst_behind_seconds
    if target is None or _is_too_early(facts, scaling):
        return None
    wishes = [wish for stage in load.own if (wish := _of_stage(facts, load, stage, scaling, target)) is not None]
    return max(wishes, key=lambda wish: wish.seconds, default=None)


def catch_up_seconds(backlog: int, stage: StageLoad, share: float) -> float:
    """Until a partition is through with its backlog that has so much of a worker's time; infinite for never.

    What comes meanwhile is taken to go to all partitions alike.
    """
    if not backlog:
        return 0.0
    pace = (stage.true_rate or 0.0) * share - stage.arrival_rate / stage.partitions
    return backlog / pace if pace > 0 else math.inf


def _is_too_early(facts: JobFacts, scaling: Scaling) -> bool:
    if facts.operation is not None and not facts.operation.is_abandoned(facts.now_ms):
        return True
    ended = [past.at_ms for past in facts.record.operations if past.about.kind == "burst"]
    return bool(ended) and facts.now_ms - ended[-1] < scaling.cooldown_seconds * 1000


def _of_stage(facts: JobFacts, load: Load, stage: StageLoad, scaling: Scaling, target: float) -> BurstWish | None:
    if stage.is_stopped or stage.true_rate is None:
        return None
    own = {each.index for each in load.own}
    busy = sum(1 for part in facts.partitions if part.stage in own and part.backlog)
    share = min(1.0, (scaling.maximum + load.others) / max(1, busy))
    late = {
        part.partition: seconds
        for part in facts.partitions
        if part.stage == stage.index and (seconds := catch_up_seconds(part.backlog, stage, share)) > target
    }
    if not late:
        return None
    return BurstWish(stage.name, tuple(sorted(late)), max(late.values()))
