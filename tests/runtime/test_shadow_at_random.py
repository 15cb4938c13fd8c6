"""Cut anywhere, promoted anywhere: what comes out is what a run gives that has changed its code at that very record."""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pipeline import KeyedOperator, Pipeline, read, write
from pipeline.kernel.contract import Emitted, TimerChanges
from pipeline.settings import Limits
from tests.runtime.harness import LocalJob
from tests.runtime.shadows import Pair, goes_on

KEYS = "abcde"
END = 1_000
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)


class Sum(KeyedOperator):
    """The sum of each key after each record, and once more at the end."""

    def __init__(self, step: int) -> None:
        self._step = step

    def process(self, keys: list[Any], values: list[Any], state: dict[Any, Any], timers: TimerChanges) -> Emitted:
        sums = []
        for key in keys:
            state[key] = state.get(key, 0) + self._step
            timers.set(key, END)
            sums.append(state[key])
        return Emitted(sums)

    def on_timer(
        self, keys: Sequence[Any], dues: Sequence[int], state: dict[Any, Any], timers: TimerChanges
    ) -> Emitted:
        return Emitted([["end", state[key]] for key in keys], list(range(len(keys))))


def flow(step: int) -> Pipeline:
    """Two stages with state; the first one counts the records that it hands on."""

    def number(_key: Any, value: Any, state: int | None) -> tuple[Any, int]:
        return value, (state or 0) + 1

    made = Pipeline("sums")
    numbered = made.source(read.producer(), name="in").key_by(lambda word: word, name="hop").stateful_map(number)
    numbered.key_by(lambda word: word, name="by").process(Sum(step), name="sum").sink(write.stream("out"), name="out")
    return made


def reference(words: Sequence[str], cut: Mapping[str, int], place: int) -> dict[str, list[Any]]:
    """The old version adds 1; the new one 100, but for those of each key that were summed at the cut.

    Behind `place` records the new one's sums are the job's.
    """
    old: Counter[str] = Counter()
    new: Counter[str] = Counter()
    found: dict[str, list[Any]] = defaultdict(list)
    for index, word in enumerate(words):
        old[word] += 1
        new[word] += 1 if old[word] <= cut.get(word, 0) else 100
        found[word].append(old[word] if index < place else new[word])
    for word in new:
        found[word].append(["end", new[word]])
    return dict(found)


class Walk:
    """Sends, works and pours as it is told, at most so much at a time."""

    def __init__(self, job: LocalJob, data: st.DataObject) -> None:
        self.job, self._data = job, data
        self.sent: list[str] = []
        self.pair: Pair | None = None

    def draw(self, most: int) -> int:
        return self._data.draw(st.integers(0, most))

    def go(self) -> None:
        for _ in range(1 + self.draw(5)):
            words = self._data.draw(st.text(KEYS, max_size=12))
            if words:
                self.job.send(words, entry_records=1 + self.draw(4))
                self.sent += words
            self._work(self.job)
            if self.pair is not None:
                if self.draw(1):
                    self.pair.one.step()
                self._work(self.pair.shadow)

    def _work(self, job: LocalJob) -> None:
        left = self.draw(6)
        for place in job.places:
            if left and job.pop_ticket(place):
                job.slice(job.owner_of(place) or "", place)
                left -= 1


@settings(max_examples=12, phases=PHASES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_promotion_is_a_change_of_code_at_one_record(redis_url: str, data: st.DataObject) -> None:
    limits = Limits(step_records=data.draw(st.integers(1, 5)))
    with tempfile.TemporaryDirectory() as folder, LocalJob(redis_url, flow(1), limits=limits) as job:
        try:
            job.assign()
            walk = Walk(job, data)
            walk.go()
            walk.pair = pair = Pair(job, flow(100), Path(folder))
            cut = {key: value for (operator, key), value in pair.shadow.state(2).items() if operator == "sum"}
            pair.shadow.look()
            walk.go()
            place = len(walk.sent)
            pair.promote()
            pair.close("promoted")
            job.drain_outputs()
            job.workers.clear()
            new = goes_on(job, flow(100))
            after = Walk(new, data)
            after.go()
            new.run_to_the_end()

            assert new.by_key() == reference(walk.sent + after.sent, cut, place)
        finally:
            job.client.flushall()


@settings(max_examples=6, phases=PHASES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_same_version_is_equal_whatever_is_done_when(redis_url: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder, LocalJob(redis_url, flow(1)) as job:
        try:
            job.assign()
            walk = Walk(job, data)
            walk.go()
            walk.pair = pair = Pair(job, flow(1), Path(folder))
            pair.shadow.look()
            walk.go()
            pair.work()

            report = pair.one.report()
            assert (report.different, pair.one.comparison.waiting, report.lag) == (0, 0, 0)
            assert sum(tally.moved for tally in report.sinks.values()) == 0
            assert pair.shadow.state(1) == job.state(1)
            assert pair.shadow.state(2) == job.state(2)
            pair.close()
        finally:
            job.client.flushall()
