"""The lines of one split, by Hadoop's rule and so equal to what Spark reads of it. Decodes nothing."""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, cast

from pipeline.errors import InputError
from pipeline.sources.splits import Split, check_unchanged, is_compressed

_READ_BYTES: Final = 1 << 20
MARK: Final = b"\xef\xbb\xbf"
"""A byte order mark, which is no part of the first line."""

UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")


def split_lines(split: Split) -> Iterator[list[bytes]]:
    """The split's lines without their ends, some at a time.

    A line ends with \\n, \\r\\n or \\r, the last one perhaps with the file. It belongs to the split in which it
    starts, and a line that starts just at the end of a block belongs to that block, not to the next. The empty
    rest behind the last line end is no line; a byte order mark at the start of the file is dropped. A compressed
    file is unpacked and is one split.
    Raises InputError for a file that cannot be read or unpacked, or that has changed.
    """
    check_unchanged(split)
    with _readable(Path(split.path)), open_unpacked(Path(split.path)) as file:
        if split.is_compressed:
            yield from _lines(file, 0, None)
        else:
            file.seek(split.start)
            yield from _lines(file, split.start, split.end)
    check_unchanged(split)


def check_encoding(path: Path) -> None:
    """Raises InputError for a file that cannot be read or unpacked, or whose first bytes say that it is UTF-16."""
    with _readable(path), open_unpacked(path) as file:
        start = file.read(2)
    check_start(path, start)


def check_start(path: Path, start: bytes) -> None:
    """Raises InputError when the first two bytes of a file say that it is UTF-16."""
    if start in UTF_16:
        raise InputError(
            f"{path} is text in UTF-16, and only UTF-8 is read",
            hint=f"convert it, for example with: iconv -f UTF-16 -t UTF-8 {path.name} > utf8-{path.name}",
        )


def open_unpacked(path: Path) -> IO[bytes]:
    """The file's bytes, unpacked when its name ends so."""
    match path.suffix:
        case ".gz":
            return cast("IO[bytes]", gzip.open(path, "rb"))
        case ".bz2":
            return cast("IO[bytes]", bz2.open(path, "rb"))
        case _:
            return path.open("rb")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turns what goes wrong with the file in the body into InputError."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path} cannot be unpacked: {error}", hint="the file is damaged or cut off") from error
    except OSError as error:
        hint = "the file is damaged or cut off" if is_compressed(path) else "check the file and the disk it is on"
        raise InputError(f"{path} cannot be read: {error.strerror or error}", hint=hint) from error


def _lines(file: IO[bytes], start: int, end: int | None) -> Iterator[list[bytes]]:
    """`start` is where the file stands. `end` is None for: to the end of the file."""
    at_file_start = start == 0
    is_discarding = not at_file_start
    rest = b""
    position = start
    while end is None or position <= end:
        read = file.read(_READ_BYTES)
        data = rest + read
        if at_file_start and (len(data) >= len(MARK) or not read):
            data, position = (data[3:], position + 3) if data.startswith(MARK) else (data, position)
            at_file_start = False
        cut = whole_lines(data) if read else len(data)
        block, rest = data[:cut], data[cut:]
        if is_discarding and block:
            dropped = len(block.splitlines(keepends=True)[0])
            block, position, is_discarding = block[dropped:], position + dropped, False
        if end is not None and position + len(block) > end:
            yield _up_to(block, position, end)
            return
        if block:
            yield block.splitlines()
        position += len(block)
        if not read:
            return


def whole_lines(data: bytes) -> int:
    """Length of the whole lines in data. A \\r at the very end does not count: it may grow to \\r\\n."""
    if data.endswith(b"\n"):
        return len(data)
    last = len(data) - 1
    return max(data.rfind(b"\n", 0, last), data.rfind(b"\r", 0, last)) + 1 if last > 0 else 0


def _up_to(block: bytes, position: int, end: int) -> list[bytes]:
    """The lines of the block that start at `end` or before. `position` is the start of the block."""
    lines = []
    for line in block.splitlines(keepends=True):
        if position > end:
            break
        lines.append(line.rstrip(b"\r\n"))
        position += len(line)
    return lines
