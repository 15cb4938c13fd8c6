"""Files, splits and their names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InputError
from pipeline.sources.splits import SPLIT_BYTES, Split, check_unchanged, find_files, plan_splits, portions_of


def a_file(folder: Path, name: str, content: bytes = b"a\n") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def test_a_folder_gives_its_visible_files_sorted_and_not_those_of_its_sub_folders(tmp_path: Path) -> None:
    (tmp_path / "deeper").mkdir()
    for name in ("b.txt", "a.txt", "_SUCCESS", ".a.txt.crc", "deeper/c.txt"):
        a_file(tmp_path, name)

    assert find_files(tmp_path) == [tmp_path / "a.txt", tmp_path / "b.txt"]


def test_a_glob_gives_what_it_matches(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "_c.csv", "d.txt"):
        a_file(tmp_path, name)

    assert find_files(tmp_path / "*.csv") == [tmp_path / "a.csv", tmp_path / "b.csv"]


def test_a_file_whose_name_has_glob_characters_is_found_by_its_name(tmp_path: Path) -> None:
    path = a_file(tmp_path, "a[1].csv")

    assert find_files(path) == [path]


@pytest.mark.parametrize("name", ["nothing.csv", "no/*.csv"])
def test_a_missing_file_is_named_in_the_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"no such file or folder") as caught:
        find_files(tmp_path / name)

    assert str(tmp_path / name) in str(caught.value)


def test_an_empty_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no files to read"):
        find_files(tmp_path)


@pytest.fixture
def _ordinary_user() -> Iterator[None]:
    """Root may read everything: then the real user, which access(2) asks about, is nobody for a while."""
    is_root = os.getuid() == 0
    if is_root:
        os.setresuid(65534, -1, -1)
    yield
    if is_root:
        os.setresuid(0, -1, -1)


@pytest.mark.usefixtures("_ordinary_user")
def test_a_file_that_may_not_be_read_is_an_error(tmp_path: Path) -> None:
    a_file(tmp_path, "secret.txt").chmod(0)

    with pytest.raises(InputError, match="may not be read"):
        find_files(tmp_path / "secret.txt")


@pytest.mark.parametrize(("name", "words"), [("a.zst", "compressed as .zst"), ("s3://bucket/a", "file systems")])
def test_what_cannot_be_read_says_what_to_do(tmp_path: Path, name: str, words: str) -> None:
    a_file(tmp_path, "a.zst")

    with pytest.raises(InputError, match=words) as caught:
        find_files(name if "://" in name else tmp_path / name)

    assert caught.value.hint


def test_a_file_is_cut_into_blocks_and_a_compressed_one_is_not(tmp_path: Path) -> None:
    plain, packed = a_file(tmp_path, "a.txt", b"x" * 25), a_file(tmp_path, "a.txt.gz", b"x" * 25)
    empty = a_file(tmp_path, "empty.txt", b"")

    splits = plan_splits([plain, packed, empty], 10)

    assert [(Path(s.path).name, s.start, s.length) for s in splits] == [
        ("a.txt", 0, 10),
        ("a.txt", 10, 10),
        ("a.txt", 20, 5),
        ("a.txt.gz", 0, 25),
    ]


def test_a_name_is_stable_and_another_one_for_each_block_size_time_and_path() -> None:
    split = Split("/data/a b.txt", 25, 1_000, 10, 10)
    others = [
        Split("/data/c.txt", 25, 1_000, 10, 10),
        Split("/data/a b.txt", 26, 1_000, 10, 10),
        Split("/data/a b.txt", 25, 1_001, 10, 10),
        Split("/data/a b.txt", 25, 1_000, 20, 5),
    ]

    assert split.name == "a_b.txt@10-9f556e916b0ce260"
    assert len({split.name, *(other.name for other in others)}) == 5


def test_a_file_that_was_changed_is_refused(tmp_path: Path) -> None:
    path = a_file(tmp_path, "a.txt")
    split = plan_splits([path])[0]
    check_unchanged(split)

    path.write_bytes(b"longer\n")

    with pytest.raises(InputError, match="was changed while it was being read"):
        check_unchanged(split)


@given(st.lists(st.integers(1, SPLIT_BYTES) | st.integers(1, 1_000), max_size=60))
def test_portions_hold_every_split_once_in_order_and_are_no_larger_than_a_block(lengths: list[int]) -> None:
    splits = [Split(f"/data/{place}", length, 1_000, 0, length) for place, length in enumerate(lengths)]

    portions = portions_of(splits)

    assert [place for portion in portions for place in portion] == list(range(len(splits)))
    assert all(len(portion) == 1 or sum(lengths[place] for place in portion) <= SPLIT_BYTES for portion in portions)
    assert len(portions) <= 33 + 2 * sum(lengths) // SPLIT_BYTES
