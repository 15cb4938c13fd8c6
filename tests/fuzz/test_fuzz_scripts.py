"""Scripts that find a number that is none: they refuse before their first write, or do all of their work."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from pipeline.store.connection import connect, translated
from pipeline.store.scripts import Scripts
from tests.fuzz.hostile import EXAMPLES
from verification.points import Life, watched_client
from verification.scenarios import SCENARIOS
from verification.scriptfaults import Call, ScriptTally, Trial, TriedScripts
from verification.world import World

_NUMBER: Final = re.compile(rb"-?\d+(-\d+)?\Z")
_FLAGS: Final = (b"ring", b"closed", b"done", b"nothing")
"""Fields that are there or not, and are not counted with."""

EACH: Final = 1 if EXAMPLES else 6
"""Of so many calls of one script, one is tried: the first one of each script always."""


class FieldTrial(Trial):
    """Each number in a hash that a script is given becomes a word, one at a time."""

    def __init__(self, url: str, tally: ScriptTally) -> None:
        super().__init__(url, tally)
        self.calls: Counter[str] = Counter()

    def of(self, call: Call) -> None:
        self.calls[call.name] += 1
        if self.calls[call.name] % EACH != 1 % EACH:
            return
        with translated():
            self._begin()
            self._eval(call)
            clean = self._digests()
            self._copy_all()
            for key in dict.fromkeys(call.keys):
                if self._copy.type(key) == b"hash":
                    for field, value in self._copy.hgetall(key).items():
                        if _NUMBER.match(value) and field not in _FLAGS:
                            self._try_field(call, (key, field), clean)

    def _try_field(self, call: Call, at: tuple[str, bytes], clean: dict[bytes, bytes]) -> None:
        self._tally.foreign += 1
        self._copy.hset(at[0], at[1], "foreign")
        before = self._digests()
        error = self._eval(call)
        after, raw = self._digests(), at[0].encode()
        others = {k: v for k, v in after.items() if k != raw} == {k: v for k, v in clean.items() if k != raw}
        if after != before and (error is not None or not others):
            self._tally.failures.append(f"{call.name}.lua has done half of its work when {at} is a word: {error}")
        self._copy_all()


@pytest.fixture
def tally(redis_url: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ScriptTally]:
    scenario = next(one for one in SCENARIOS if one.name == request.param)
    found = ScriptTally()
    trial, client = FieldTrial(redis_url, found), connect(redis_url)
    world = World(redis_url, client, tmp_path, scenario, {}, lambda url, life: _scripts(url, life, trial))
    world.run()
    yield found
    trial.close()
    client.flushall()
    client.close()


def _scripts(url: str, life: Life, trial: Trial) -> Scripts:
    return TriedScripts(watched_client(url, life), life.points, trial)


_FEW: Final = ("commit with state and outputs", "dead letters, mended and replayed", "append by a producer")


@pytest.mark.parametrize("tally", [one.name for one in SCENARIOS if EXAMPLES or one.name in _FEW], indirect=True)
def test_a_script_that_cannot_count_has_written_nothing(tally: ScriptTally) -> None:
    assert sorted(set(tally.failures)) == []
    assert tally.foreign > 100
