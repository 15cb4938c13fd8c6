"""A day of a simulated job under each autoscaling policy, drawn for the docs; and records of what real jobs do.

    python benchmarks/autoscaling.py                       # writes docs/assets/autoscaling.svg, about half a minute
    python benchmarks/autoscaling.py --record JOB --redis URL --seconds 60 > trace.json

Only the load and the workers are computed: history, decision and policies are those of the leader.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.simulated import Row, SimulatedJob, SimulatedStage
from pipeline.facts import JobFacts
from pipeline.scaling.history import arrived
from pipeline.scaling.settings import POLICIES, PolicyName, Scaling
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts

PICTURE: Final = Path(__file__).parent.parent / "docs" / "assets" / "autoscaling.svg"

DAY_HOURS: Final = 24
NIGHT_RATE: Final = 40.0
DAY_RATE: Final = 3_000.0
BURST_RATE: Final = 9_000.0
NOISE: Final = 0.1

STAGES: Final = (SimulatedStage("parse", 2_000, 1.0, 12), SimulatedStage("count", 1_500, 0.1, 12))
MOST_WORKERS: Final = 12


def day(hour_seconds: float, seed: int = 1) -> Callable[[float], float]:
    """Records a second at a time: a night, a ramp, a plateau with a burst of half an hour, a ramp down, a night.

    With noise of a tenth, which is the same for the same seed.
    """
    chance = random.Random(seed)
    noise = [chance.uniform(1 - NOISE, 1 + NOISE) for _ in range(1000)]

    def offered(now: float) -> float:
        return _shape(now / hour_seconds) * noise[int(now) % len(noise)]

    return offered


def _shape(hour: float) -> float:
    hour %= DAY_HOURS
    if 12 <= hour < 12.5:
        return BURST_RATE
    ramp = min(1.0, max(0.0, min(hour - 6, 20 - hour) / 3))
    return NIGHT_RATE + ramp * (DAY_RATE - NIGHT_RATE)


def simulated_day(policy: PolicyName, hour_seconds: float, **settings: float) -> SimulatedJob:
    """A job after its day of 24 hours of so many seconds. `settings` are other than the defaults of Scaling."""
    scaling = Scaling(1, MOST_WORKERS, policy, **settings)
    job = SimulatedJob(STAGES, scaling, day(hour_seconds))
    job.run(DAY_HOURS * hour_seconds)
    return job


def draw(days: dict[str, SimulatedJob], hour_seconds: float, picture: Path) -> None:
    """Load, workers and backlog of each policy under each other. Needs matplotlib, of the extra `plots`."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "celeriac", "font.size": 9, "svg.fonttype": "path"})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(3, 1, figsize=(8.5, 7.2), sharex=True, height_ratios=(2, 3, 2), layout="constrained")
    load, workers, backlog = axes
    for (name, job), color in zip(days.items(), ("#2e7d32", "#c2571a"), strict=True):
        rows = job.rows[:: max(1, int(hour_seconds / 120))]
        hours = [row.at / hour_seconds for row in rows]
        label = f"{name}: {len(job.changes)} changes"
        workers.step(hours, [row.workers for row in rows], where="post", color=color, label=label)
        backlog.plot(hours, [row.work_seconds / 60 for row in rows], color=color, label=name)
    load.plot(hours, [_shape(hour) / 1000 for hour in hours], color="#455a64")
    load.set_ylabel("thousand records/s")
    workers.plot(
        hours, [_ideal(_shape(hour)) for hour in hours], color="#9e9e9e", linewidth=0.9, label="kept busy all the time"
    )
    workers.set_ylabel("workers")
    backlog.set_ylabel("backlog, min of work")
    backlog.set_xlabel("hour of the day")
    backlog.set_xticks(range(0, DAY_HOURS + 1, 3))
    backlog.set_xlim(0, DAY_HOURS)
    for axis in axes:
        axis.set_ylim(bottom=0)
        axis.grid(color="#e0e0e0", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    workers.legend(frameon=False, loc="upper left")
    backlog.legend(frameon=False, loc="upper left")
    figure.savefig(picture, format="svg", facecolor="white", metadata={"Date": None})


def _ideal(rate: float) -> float:
    """Workers that this rate would keep busy all the time."""
    needed = 0.0
    for stage in STAGES:
        needed += rate / stage.true_rate
        rate *= stage.selectivity
    return needed


def figures(job: SimulatedJob, hour_seconds: float) -> str:
    worst = max(job.rows, key=lambda row: row.work_seconds)
    gone = next((row for row in job.rows if row.at > 12.5 * hour_seconds and _is_calm(row)), None)
    late = f"{gone.at - 12.5 * hour_seconds:.0f} s after the burst" if gone else "never"
    hours = sum(row.workers for row in job.rows) / hour_seconds
    return (
        f"{len(job.changes)} changes, {hours:.0f} worker hours, most work behind {worst.work_seconds:.0f} s"
        f" at hour {worst.at / hour_seconds:.2f}, none left {late}"
    )


def _is_calm(row: Row) -> bool:
    return row.work_seconds < row.workers


def recorded(store: JobStore, job: str, seconds: float) -> Iterator[dict[str, Any]]:
    """One row each second of what a leader sees of a job, first the job itself. `tests/unit/traces` holds such rows."""
    facts = store.facts(job)
    stages = [[stage.name, stage.upstream, stage.partitions] for stage in facts.record.plan.stages]
    yield {"stages": stages}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        facts = store.facts(job)
        yield _row(facts)
        time.sleep(1.0)


def _row(facts: JobFacts) -> dict[str, Any]:
    return {
        "now_ms": facts.now_ms,
        "wanted": facts.record.workers_wanted,
        "parts": [[each.stage, each.partition, arrived(each), each.taken, each.backlog] for each in facts.partitions],
        "workers": [
            [
                each.name,
                each.incarnation,
                round(each.age_seconds, 3),
                "main" if each.is_sized else "",
                each.report.get("busy"),
            ]
            for each in facts.workers
        ],
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--hour-seconds", type=float, default=600.0, help="simulated seconds of an hour of the picture"
    )
    options.add_argument("--picture", type=Path, default=PICTURE)
    options.add_argument("--record", metavar="JOB")
    options.add_argument("--redis", default="redis://127.0.0.1:6379/0")
    options.add_argument("--seconds", type=float, default=60.0)
    asked = options.parse_args()
    if asked.record:
        rows = list(recorded(JobStore(Scripts(connect(asked.redis))), asked.record, asked.seconds))
        print("[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]")
        return
    days = {policy: simulated_day(policy, asked.hour_seconds) for policy in POLICIES}
    for policy, job in days.items():
        print(f"{policy:12}{figures(job, asked.hour_seconds)}")
    draw(dict(days), asked.hour_seconds, asked.picture)


if __name__ == "__main__":
    main()
