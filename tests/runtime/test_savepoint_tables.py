"""The files of a savepoint's tables: what is added is read back, in bounded pieces; a place that refuses is told."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import SavepointError
from pipeline.savepoints.manifest import PartFile
from pipeline.savepoints.places import Draft, LocalPlace
from pipeline.savepoints.tables import TableWriter, read_columns, read_originals

ROWS = 45_000
COLUMNS = ("stage", "operator", "group", "key", "value", "packed")


def a_page(first: int, count: int) -> list[list[Any]]:
    numbers = range(first, first + count)
    texts = [f"k{number}" for number in numbers]
    return [["s"] * count, ["op"] * count, [number // 1000 for number in numbers], texts, texts, [None] * count]


def write(writer: TableWriter, pages: list[list[list[Any]]]) -> PartFile:
    for page in pages:
        writer.add_page(*page)
    (part,) = writer.close()
    return part


def test_rows_of_many_row_groups_are_read_back_in_order(tmp_path: Path) -> None:
    place = LocalPlace(tmp_path)
    draft = place.begin("s", "j")
    part = write(TableWriter(draft, "state"), [a_page(first, 1000) for first in range(0, ROWS, 1000)])
    draft.publish(b"{}")

    expected = dict(zip(COLUMNS, a_page(0, ROWS), strict=True))
    pages = list(read_columns(place, "s", "state", part.path))
    assert {name: [value for page in pages for value in page[name]] for name in COLUMNS} == expected
    originals = [batch.to_pydict() for batch in read_originals(place, "s", "state", part.path)]
    assert {name: [value for page in originals for value in page[name]] for name in COLUMNS} == expected
    data = place.read("s", part.path)
    assert (part.rows, part.bytes, part.sha256) == (ROWS, len(data), hashlib.sha256(data).hexdigest())


def test_pages_of_large_rows_have_few_of_them(tmp_path: Path) -> None:
    place = LocalPlace(tmp_path)
    draft = place.begin("s", "j")
    pages = [[["s"], ["op"], [0], [str(number)], ["x" * (1 << 20)], [None]] for number in range(40)]
    part = write(TableWriter(draft, "state"), pages)
    draft.publish(b"{}")

    for sizes in (
        [len(page["key"]) for page in read_columns(place, "s", "state", part.path)],
        [batch.num_rows for batch in read_originals(place, "s", "state", part.path)],
    ):
        assert (sum(sizes), max(sizes)) == (40, 16)


class FullDraft(Draft):
    """Takes nothing of what is written to it."""

    def create(self, path: str) -> Any:
        return self

    def write(self, data: Any) -> int:
        raise SavepointError("the disk is full")

    def close(self) -> None: ...

    def publish(self, manifest: bytes) -> None: ...

    def discard(self) -> None: ...


@pytest.mark.parametrize("rows", [1, ROWS])
def test_a_place_that_refuses_is_told_and_no_thread_is_left(rows: int) -> None:
    before = threading.active_count()
    writer = TableWriter(FullDraft(), "state")

    with pytest.raises(SavepointError, match="the disk is full"):
        write(writer, [a_page(first, min(rows, 1000)) for first in range(0, rows, 1000)])
    writer.abandon()

    assert threading.active_count() == before
