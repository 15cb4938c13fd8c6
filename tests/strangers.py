"""Finds keys on a server that no function of `pipeline.store.keys` makes, and those of jobs that are gone."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from functools import cache
from typing import Any, Final

from pipeline.store import keys

PARTS: Final = {
    "job": r"(?P<job>[A-Za-z0-9][A-Za-z0-9_.-]{0,99})",
    "stage": r"\d+",
    "partition": r"\d+",
    "group": r"\d+",
    "operator": r"[A-Za-z][A-Za-z0-9_-]*",
    "sink": r"[A-Za-z][A-Za-z0-9_-]*",
    "source": r"[A-Za-z][A-Za-z0-9_-]*",
    "worker": r"[A-Za-z0-9][A-Za-z0-9_.-]*",
    "leader": r"[A-Za-z0-9][A-Za-z0-9_.@-]*",
    "key": r":[a-z]+(:.+)?",
}
NO_KEYS: Final = {"of_job", "own_leader_name", "queue_name", "leader_queue_name"}
"""Functions that make parts of keys, or names of queues that other functions make whole."""

KOMBU: Final = re.compile(r"celeriac:_kombu\..*")
"""kombu's own tables, which go with the last job."""


@cache
def shapes() -> tuple[re.Pattern[str], ...]:
    """What keys look like, one pattern for each function."""
    made = []
    for name, make in inspect.getmembers(keys, inspect.isfunction):
        if name in NO_KEYS or make.__module__ != keys.__name__:
            continue
        parts = list(inspect.signature(make).parameters)
        whole = make(*(f"<{part}>" for part in parts))
        text = re.escape(whole if whole.startswith(keys.PREFIX) else keys.PREFIX + whole)
        for part in parts:
            text = text.replace(re.escape(f"<{part}>"), PARTS[part])
        made.append(re.compile(text))
    return tuple(made)


def strangers(client: Any, known: Iterable[str] = ()) -> list[str]:
    """Keys that nobody of ours makes, and those of jobs that are not registered (`known`: patterns of other keys)."""
    jobs = {job.decode() for job in client.zrange(keys.jobs(), 0, -1)}
    others = [re.compile(pattern) for pattern in known]
    found = []
    for name in sorted(key.decode("utf-8", "backslashreplace") for key in client.scan_iter(count=1000)):
        if KOMBU.fullmatch(name) or any(other.fullmatch(name) for other in others):
            continue
        matches = [match for shape in shapes() if (match := shape.fullmatch(name))]
        owners = {match["job"] for match in matches if "job" in match.re.groupindex}
        if not matches or (owners and not owners & jobs):
            found.append(name)
    return found
