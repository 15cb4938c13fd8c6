"""The version of a table that a job reads, which its first feeder chooses for all that come after it.

It is the name of a sender without records. So it is kept, copied and goes with all else that the job has read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from pipeline.graph import SourceSpec
from pipeline.sources.feed import Feed

VERSION_SPLIT: Final = "~version-"
"""How such a name begins; no split of a file begins so."""


def version_split(version: int) -> str:
    return f"{VERSION_SPLIT}{version}"


def at_version(spec: SourceSpec, splits: Iterable[str]) -> SourceSpec:
    """The source at the version that these splits of it name; as it is where they name none, or it needs none."""
    found = [int(name.removeprefix(VERSION_SPLIT)) for name in splits if name.startswith(VERSION_SPLIT)]
    if spec.format != "delta" or spec.options["version"] is not None or not found:
        return spec
    return replace(spec, options={**spec.options, "version": min(found)})


def pinned(spec: SourceSpec, feed: Feed) -> SourceSpec:
    """The source at the version that the job reads: the newest one of now, if it reads none yet.

    Raises InputError, EnvironmentFault and what the feed raises.
    """
    if spec.format != "delta" or spec.options["version"] is not None:
        return spec
    if not feed.splits(VERSION_SPLIT):
        from pipeline.sources.deltatable import current_version  # delta-rs is an extra

        feed.lane(version_split(current_version(spec.path)))
    return at_version(spec, feed.splits(VERSION_SPLIT))
