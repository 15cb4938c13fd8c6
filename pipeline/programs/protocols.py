"""What goes to a program and what comes back, as bytes: the three protocols of external operators. Runs nothing.

docs/external.md describes them for those who write programs.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import Any, Final, TypeAlias

import msgspec

from pipeline.codec import shown
from pipeline.errors import EncodingError
from pipeline.records import Batch

ANSWER_BYTES: Final = 8 << 20
"""The longest line that a program may write."""

OUTPUT_BYTES: Final = 64 << 20
"""The most that a program may write for one batch: it is held in memory."""

OUTPUT_LINES: Final = 1_000_000
"""The most lines that a program of plain lines may write for one batch: a short one takes many times its bytes."""

_SHOWN: Final = 120
_REFUSED: Final = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
"""All that the JSON encoder raises for a value without a JSON form."""

Outputs: TypeAlias = tuple[list[Any], list[int] | None]
"""The outputs in order, and for each the index of its record; None where each record has one, or none is known."""

_to_json = msgspec.json.Encoder()
_from_json = msgspec.json.Decoder()


class Malformed(Exception):
    """Raised when a program wrote what its protocol does not have. It cannot be trusted after that."""


class Rejected(Exception):
    """Raised when a program has answered well, and said that it cannot take a record."""


class Answers(ABC):
    """Collects what a program writes for one batch, within bounds, in chunks of any size.

    `count` is the number of records answered so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._size = 0
        self._rest = bytearray()

    def take(self, chunk: bytes) -> None:
        """Raises Malformed, as soon as it can be told."""
        self._size += len(chunk)
        if self._size > OUTPUT_BYTES:
            raise Malformed(f"it wrote more than {OUTPUT_BYTES >> 20} MiB for one batch")
        self._rest += chunk
        if b"\n" in chunk:
            lines = bytes(self._rest).split(b"\n")
            self._rest = bytearray(lines.pop())
            self._take_lines(lines)
        if len(self._rest) > ANSWER_BYTES:
            raise Malformed(f"it wrote a line of more than {ANSWER_BYTES >> 20} MiB")

    @property
    def has_rest(self) -> bool:
        """Whether a line has begun and not ended."""
        return bool(self._rest)

    @abstractmethod
    def outputs(self) -> Outputs:
        """Raises Malformed, Rejected."""

    @abstractmethod
    def _take_lines(self, lines: list[bytes]) -> None:
        """Takes complete lines, without their ends."""


class JsonAnswers(Answers):
    """One line for each record: a list of its outputs, or an object with the field "error"."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[bytes] = []

    def _take_lines(self, lines: list[bytes]) -> None:
        self._lines += lines
        self.count += len(lines)

    def outputs(self) -> Outputs:
        values: list[Any] = []
        counts: list[int] = []
        decode = _from_json.decode
        for index, line in enumerate(self._lines):
            try:
                answer = decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise Malformed(f"answer {index + 1} is no JSON: {shown(line, _SHOWN)}: {error}") from error
            if type(answer) is not list:
                if isinstance(answer, dict) and "error" in answer:
                    raise Rejected(str(answer["error"]))
                raise Malformed(f"answer {index + 1} is no list of outputs: {shown(line, _SHOWN)}")
            values += answer
            counts.append(len(answer))
        if all(count == 1 for count in counts):
            return values, None
        return values, [index for index, count in enumerate(counts) for _ in range(count)]


def json_request(batch: Batch) -> bytes:
    """A line {"key": ..., "value": ...} for each record. Raises EncodingError for a value without a JSON form."""
    keys = batch.keys or [None] * len(batch)
    try:
        return _to_json.encode_lines([{"key": k, "value": v} for k, v in zip(keys, batch.values, strict=True)])
    except _REFUSED as error:
        for index, (key, value) in enumerate(zip(keys, batch.values, strict=True)):
            _check_json({"key": key, "value": value}, index)
        raise EncodingError(f"a batch has no JSON form: {error}") from error


def _check_json(record: dict[str, Any], index: int) -> None:
    try:
        _to_json.encode(record)
    except _REFUSED as error:
        raise EncodingError(
            f"a record has no JSON form: {shown(record, _SHOWN)}: {error}",
            index,
            hint="map it to numbers, text, lists and dicts first",
        ) from error


class ForwardAnswers(Answers):
    """For each record `filter`, or `forward` and the lines `key:` and `value:`."""

    def __init__(self) -> None:
        super().__init__()
        self._forwarded: list[Any] = []
        self._origins: list[int] = []
        self._expected = b"forward"
        self._key = ""

    def _take_lines(self, lines: list[bytes]) -> None:
        for line in lines:
            if self._expected == b"forward":
                if line == b"filter":
                    self.count += 1
                elif line == b"forward":
                    self._expected = b"key:"
                else:
                    raise self._unexpected(line, "'forward' or 'filter'")
            elif not line.startswith(self._expected):
                raise self._unexpected(line, f"a line that begins with {self._expected.decode()!r}")
            elif self._expected == b"key:":
                self._key = _field(line[4:])
                self._expected = b"value:"
            else:
                self._forwarded.append({"key": self._key, "value": _field(line[6:])})
                self._origins.append(self.count)
                self.count += 1
                self._expected = b"forward"

    def outputs(self) -> Outputs:
        return self._forwarded, self._origins

    @property
    def has_rest(self) -> bool:
        return bool(self._rest) or self._expected != b"forward"

    def _unexpected(self, line: bytes, wanted: str) -> Malformed:
        return Malformed(f"answer {self.count + 1} has {shown(line, _SHOWN)} where {wanted} must stand")


def forward_request(batch: Batch) -> bytes:
    """The lines `key: ` and `value: ` for each record. Raises EncodingError for what is no text.

    On a stream without keys the key is empty, or that of a value that another such program has forwarded.
    """
    if batch.keys is None:
        pairs = [_forwarded(value, index) for index, value in enumerate(batch.values)]
    else:
        pairs = [(_key_text(key, i), _text(batch.values[i], i)) for i, key in enumerate(batch.keys)]
    return "".join([f"key: {_escape(key)}\nvalue: {_escape(value)}\n" for key, value in pairs]).encode()


def _forwarded(value: Any, index: int) -> tuple[str, str]:
    if isinstance(value, dict) and value.keys() == {"key", "value"}:
        return _text(value["key"], index), _text(value["value"], index)
    return "", _text(value, index)


def _key_text(key: Any, index: int) -> str:
    return str(key) if type(key) is int else _text(key, index)


def _text(value: Any, index: int) -> str:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise EncodingError(f"{shown(value, _SHOWN)} is no valid Unicode text", index) from error
        return value
    raise EncodingError(
        f"only text goes to a program of plain lines, not {shown(value, _SHOWN)} ({type(value).__name__})",
        index,
        hint='map it to text first, or use protocol="json"',
    )


_ESCAPES: Final = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}
_ESCAPED: Final = {b"\\\\": b"\\", b"\\n": b"\n", b"\\r": b"\r"}
_TO_ESCAPE: Final = re.compile(r"[\\\n\r]")
_AN_ESCAPE: Final = re.compile(rb"\\.?", re.DOTALL)


def _escape(text: str) -> str:
    return _TO_ESCAPE.sub(lambda found: _ESCAPES[found[0]], text) if _TO_ESCAPE.search(text) else text


def _field(data: bytes) -> str:
    """The text behind `key:` or `value:` and at most one blank. Raises Malformed."""
    data = data.removeprefix(b" ")
    try:
        return (_AN_ESCAPE.sub(_unescape, data) if b"\\" in data else data).decode()
    except UnicodeDecodeError as error:
        raise Malformed(f"a line is no UTF-8: {shown(data, _SHOWN)}: {error}") from error


def _unescape(found: re.Match[bytes]) -> bytes:
    meant = _ESCAPED.get(found[0])
    if meant is None:
        raise Malformed(
            f"{found[0]!r} is no escape: a backslash is written \\\\, a line end \\n, a carriage return \\r"
        )
    return meant


class LineAnswers(Answers):
    """Output lines that belong to no record. The last one need not be ended."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[bytes] = []

    def _take_lines(self, lines: list[bytes]) -> None:
        self._lines += lines
        if len(self._lines) > OUTPUT_LINES:
            raise Malformed(f"it wrote more than {OUTPUT_LINES:,} lines for one batch")

    def outputs(self) -> Outputs:
        lines = [*self._lines, bytes(self._rest)] if self._rest else self._lines
        try:
            return [line.decode() for line in lines], None
        except UnicodeDecodeError as error:
            raise Malformed(f"a line is no UTF-8: {shown(error.object, _SHOWN)}: {error}") from error


def lines_request(values: list[Any]) -> bytes:
    """A line for each value. Raises EncodingError for what is no text, or more than a line."""
    for index, value in enumerate(values):
        if "\n" in _text(value, index):
            raise EncodingError(
                f"a program of plain lines would take {shown(value, _SHOWN)} for several lines",
                index,
                hint='use protocol="json" or "forward"',
            )
    return "".join([f"{value}\n" for value in values]).encode()
