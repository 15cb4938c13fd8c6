"""Under which names the workers of a member run: no two processes of a job have one name.

What decides in the end is the heartbeat, which takes the first process, and one with a greater incarnation; here is
made sure that a process does not come in the place of one that works.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Final

from pipeline.errors import JobStateError
from pipeline.facts import JobFacts, WorkerFacts
from pipeline.nodes import is_live

LOOK_SECONDS: Final = 0.2
SPARE_SECONDS: Final = 1.0

HINT: Final = "give each process a CELERIAC_WORKER, or a CELERIAC_NODE, of its own"


def free_number(
    look: Callable[[], JobFacts],
    names: Callable[[int], Collection[str]],
    wait: Callable[[float], bool],
    *,
    is_fixed: bool,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[int, JobFacts]:
    """The first number, from 1, whose `names` no other process has; with the facts that say so.

    Of a process that was killed the names are free when its lease is over. So long they are waited for: one that lives
    is heard of again, and then the next number is tried; where names are fixed there is none but 1. `wait` sleeps for
    so many seconds, and is true when there is no use in waiting any more; then any number is given.

    Raises JobStateError when fixed names stay in use, and what `look` raises.
    """
    facts = look()
    number, first = 1, {worker.name: _heard_ms(facts, worker) for worker in facts.workers}
    until = clock() + facts.record.plan.limits.lease_seconds + SPARE_SECONDS
    while taken := [each for each in facts.workers if each.name in names(number) and is_live(facts, each)]:
        if is_fixed:
            if clock() >= until:
                raise in_use(facts.record.job, taken[0].name)
        elif any(_heard_ms(facts, each) > first.get(each.name, -1) for each in taken):
            number += 1
            continue
        if wait(LOOK_SECONDS):
            break
        facts = look()
    return number, facts


def in_use(job: str, name: str) -> JobStateError:
    """For who is refused a name."""
    return JobStateError(f"job {job!r} has a worker {name!r} already, which is at work", hint=HINT)


def _heard_ms(facts: JobFacts, worker: WorkerFacts) -> int:
    return facts.now_ms - round(worker.age_seconds * 1000)
