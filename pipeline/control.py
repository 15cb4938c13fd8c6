"""The messages of a job's control stream, as a closed union. Each says "look": the truth is in the tables.

They are written by scripts, by the leader's or by those of whoever changes a job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from pipeline.errors import DecodingError


@dataclass(frozen=True, slots=True)
class Created:
    """The job was made."""


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The job has entered a state."""

    state: str


@dataclass(frozen=True, slots=True)
class Adopt:
    """The job goes on on another run of the server: every ownership has ended."""


@dataclass(frozen=True, slots=True)
class Assign:
    """A partition, as `stage.partition`, has another owner, under this term."""

    partition: str
    worker: str
    term: int


@dataclass(frozen=True, slots=True)
class Collect:
    """`worker`, which owns the partition under this term, is asked to give it away."""

    partition: str
    worker: str
    term: int


@dataclass(frozen=True, slots=True)
class Repartitioned:
    """A stage has another number of partitions, since this version of the table."""

    table: int


@dataclass(frozen=True, slots=True)
class Paused:
    """A stage was paused, or goes on."""


Control: TypeAlias = Created | StateChanged | Adopt | Assign | Collect | Repartitioned | Paused


def read_control(fields: Mapping[bytes, bytes]) -> Control:
    """Raises DecodingError for a kind, or contents, that are none of ours."""
    text = {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in fields.items()}
    try:
        match text.get("kind"):
            case "Created":
                return Created()
            case "State":
                return StateChanged(text["state"])
            case "Adopt":
                return Adopt()
            case "Assign":
                return Assign(text["partition"], text["worker"], int(text["term"]))
            case "Collect":
                return Collect(text["partition"], text["worker"], int(text["term"]))
            case "Table":
                return Repartitioned(int(text["table"]))
            case "Pause":
                return Paused()
            case kind:
                raise DecodingError(f"a control message is of the unknown kind {str(kind)[:100]!r}")
    except (KeyError, ValueError) as error:
        raise DecodingError(f"a control message {text.get('kind')} cannot be read: {error}") from error
