"""Which rows of a table a job reads: a version of it, or a copy, which its first feeder chooses for all that follow.

It is the name of a sender without records. So it is kept, copied and goes with all else that the job has read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from pipeline.graph import SourceSpec
from pipeline.sources.feed import Feed
from pipeline.sources.snapshots import copying

VERSION_SPLIT: Final = "~version-"
"""How such a name begins; no split of a file begins so."""

COPY_SPLIT: Final = "~copy-"


def version_split(version: int) -> str:
    return f"{VERSION_SPLIT}{version}"


def copy_split(copy: str) -> str:
    return f"{COPY_SPLIT}{copy}"


def at_version(spec: SourceSpec, splits: Iterable[str]) -> SourceSpec:
    """The source at what these splits of it name; as it is where they name nothing, or it needs nothing."""
    match spec.format:
        case "delta" if spec.options["version"] is None:
            versions = [int(name.removeprefix(VERSION_SPLIT)) for name in splits if name.startswith(VERSION_SPLIT)]
            return replace(spec, options={**spec.options, "version": min(versions)}) if versions else spec
        case "jdbc":
            copies = [name.removeprefix(COPY_SPLIT) for name in splits if name.startswith(COPY_SPLIT)]
            return replace(spec, options={**spec.options, "copy": min(copies)}) if copies else spec
    return spec


def needs_copy(spec: SourceSpec) -> bool:
    """Whether its rows are to be copied before they can be read."""
    return spec.format == "jdbc" and "copy" not in spec.options


def pinned(spec: SourceSpec, feed: Feed, owner: str, copy: Callable[[], str]) -> SourceSpec:
    """The source at what the job reads: the newest version, or a fresh copy, of now, if it reads none yet.

    `copy` makes that, for the `owner` of `pipeline.sources.snapshots`, and gives its name.
    Raises InputError, EnvironmentFault and what the feed raises.
    """
    if spec.format == "delta" and spec.options["version"] is None:
        if not feed.splits(VERSION_SPLIT):
            from pipeline.sources.deltatable import current_version  # delta-rs is an extra

            feed.lane(version_split(current_version(spec.path)))
        return at_version(spec, feed.splits(VERSION_SPLIT))
    if needs_copy(spec):
        if not feed.splits(COPY_SPLIT):
            with copying(spec.options["staging"], owner):
                if not feed.splits(COPY_SPLIT):  # nobody else has meanwhile
                    feed.lane(copy_split(copy()))
        return at_version(spec, feed.splits(COPY_SPLIT))
    return spec
