"""Dead letters of one partition, as writes of a commit. Whatever a user's error holds, the letter can be stored."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence
from typing import Final

from pipeline.errors import EncodingError
from pipeline.kernel.faults import OperatorError, describe
from pipeline.store import keys
from pipeline.store.commits import Write

logger = logging.getLogger(__name__)

_ERROR_CHARACTERS: Final = 2000
_TRACEBACK_CHARACTERS: Final = 8000


class Letters:
    """Writes dead letters of one partition. With `holds_keys` those of records say that they hold their keys."""

    def __init__(self, job: str, stage: int, partition: int, *, holds_keys: bool = False) -> None:
        self._holds_keys = holds_keys
        self._key = keys.dead(job)
        self._place = ["stage", stage, "partition", partition]
        self.replay_of = ""
        """The dead letter whose record is in hand again, or nothing."""

    def write(
        self, operator: str, error: str, trace: str, payload: bytes, tried: Sequence[str] = (), kind: str = "record"
    ) -> Write:
        """A letter; of long texts the beginning of the error and the end of the traceback are kept.

        `tried`: a line for each attempt before the last one. `kind`: record, timer or entry.
        """
        texts = (operator, error[:_ERROR_CHARACTERS], trace[-_TRACEBACK_CHARACTERS:])
        shown, why, where = (text.encode("utf-8", "backslashreplace") for text in texts)
        values = [*self._place, "operator", shown, "error", why, "traceback", where, "payload", payload]
        values += ["kind", kind] if kind != "record" else []
        values += ["tried", "\n".join(tried)] if tried else []
        values += ["replay_of", self.replay_of] if self.replay_of else []
        values += ["holds", "1"] if self._holds_keys and kind == "record" else []
        return Write("XADD", self._key, values)

    def of(
        self, error: OperatorError | EncodingError, payload: bytes, tried: Sequence[str] = (), kind: str = "record"
    ) -> Write:
        """The dead letter of a record that failed."""
        if isinstance(error, EncodingError):
            logger.warning("a record is a dead letter: error=%s", str(error)[:200])
            return self.write("", str(error), "", payload, tried, kind)
        cause = error.cause
        shown = describe(cause)
        logger.warning("a record is a dead letter: operator=%s error=%s", error.operator, shown[:200])
        return self.write(error.operator, shown, "".join(traceback.format_exception(cause)), payload, tried, kind)
