"""Writes staged rows as CSV. Knows no folders and no manifest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, BinaryIO, Final

import msgspec

from pipeline.sinks.committed import CommittedFile

_JSON: Final = msgspec.json.Encoder()
_SPECIAL: Final = re.compile(r'[",\r\n]')


def write_csv(out: BinaryIO, file: CommittedFile, columns: Sequence[str]) -> None:
    """The header and one line for each row, in UTF-8, ended by a newline, quoted where RFC 4180 asks for it.

    A missing field and null are an empty cell, empty text is `""`. Numbers, true and false, lists and objects
    stand as in JSON. In a table of one column an empty cell is `""` too: readers skip empty lines.
    Raises SinkError as `CommittedFile.chunks` does, and OSError.
    """
    out.write(_line(columns))
    for rows in file.rows():
        out.write(b"".join([_line([row.get(name) for name in columns]) for row in rows]))


def _line(values: Sequence[Any]) -> bytes:
    cells = ",".join([_cell(value) for value in values])
    return ((cells or '""') + "\n").encode()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = value if type(value) is str else _JSON.encode(value).decode()
    if not text or _SPECIAL.search(text):
        return '"' + text.replace('"', '""') + '"'
    return text
