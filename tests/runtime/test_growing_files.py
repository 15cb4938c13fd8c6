"""Files that grow, are rotated, cut, moved and deleted while a feeder reads them, and dies."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline import read
from pipeline.errors import InputError, PipelineError
from pipeline.settings import Limits
from pipeline.sources import growing, growingfile
from pipeline.sources.opening import open_source
from tests.runtime.followed import Follow


def append(path: Path, text: str | bytes) -> None:
    with open(path, "ab") as file:
        file.write(text if isinstance(text, bytes) else text.encode())


def following(path: Path | str, **options: Any) -> Any:
    return read.text(path, follow=True, **options)


def test_lines_come_when_they_end_and_not_before(follow: Callable[..., Follow], tmp_path: Path) -> None:
    log = tmp_path / "log"
    append(log, "one\ntwo\nthr")
    one = follow(following(log))
    one.rounds(5)
    assert one.values() == ["one", "two"]

    append(log, "ee\n\nfive\r\n")
    one.rounds(5)

    assert one.values() == ["one", "two", "three", "", "five"]


def test_a_new_feeder_goes_on_behind_the_last_line(follow: Callable[..., Follow], tmp_path: Path) -> None:
    log = tmp_path / "log"
    append(log, "one\ntwo\n")
    one = follow(following(log))
    one.rounds(3)

    append(log, "three\n")
    one.start()
    one.rounds(3)

    assert one.values() == ["one", "two", "three"]


def test_a_file_that_is_not_there_yet_is_waited_for(
    follow: Callable[..., Follow], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = follow(following(tmp_path / "log"))
    one.rounds(3)
    why = f"{tmp_path / 'log'} is not there (it is read as soon as it is)"
    assert why in caplog.text
    assert one.job.jobs.read("j").waits == {"in": why}

    append(tmp_path / "log", "one\n")

    one.until(lambda: one.values() == ["one"])
    assert one.job.jobs.read("j").waits == {}


def test_what_a_feeder_waited_for_when_it_was_killed_is_not_said_for_ever(
    follow: Callable[..., Follow], tmp_path: Path
) -> None:
    one = follow(following(tmp_path / "log"))
    one.rounds(3)
    append(tmp_path / "log", "one\n")
    one.start()
    one.rounds(3)

    assert one.job.jobs.read("j").waits == {}


def test_a_rotation_by_rename_loses_nothing_and_the_old_file_is_read_to_its_end_first(
    follow: Callable[..., Follow], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growingfile, "READ_BYTES", 8)  # so that the end of the old file takes several rounds
    log, old = tmp_path / "log", tmp_path / "log.1"
    append(log, "one\n")
    one = follow(following(log), partitions=1)
    one.rounds(3)

    append(log, "a\nb\nc\nd\ne\nf\ng\nh\ni\ntwo\n")
    log.rename(old)
    append(log, "new 1\n")
    one.rounds(10)
    append(old, "three\n")
    one.rounds(10)
    append(old, "four\n")
    one.rounds(10)

    values = one.values()
    assert [value for value in values if value != "new 1"] == ["one", *"abcdefghi", "two", "three", "four"]
    assert values.index("two") < values.index("new 1")


def test_the_last_line_of_a_file_that_was_rotated_away_counts_when_it_has_been_quiet(
    follow: Callable[..., Follow], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    append(log, "one\nunfinished")
    one = follow(following(log))
    one.rounds(3)
    log.rename(tmp_path / "log.1")
    append(log, "new\n")

    one.rounds(5)
    assert sorted(one.values()) == ["new", "one"]
    one.rounds(int(growing.ABANDONED_SECONDS) + 2)

    assert sorted(one.values()) == ["new", "one", "unfinished"]


def test_a_file_that_was_rotated_while_nobody_read_is_found_under_its_new_name(
    follow: Callable[..., Follow], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    append(log, "one\n")
    one = follow(following(log))
    one.rounds(3)

    append(log, "two\n")
    log.rename(tmp_path / "log.1")
    append(log, "three\n")
    one.start()
    one.rounds(5)

    assert sorted(one.values()) == ["one", "three", "two"]


def test_a_file_that_rested_and_is_written_and_rotated_between_two_looks_is_read_all_the_same(
    follow: Callable[..., Follow], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    append(log, "one\n")
    one = follow(following(log))
    one.rounds(int(growing.REST_SECONDS) + 5)

    append(log, "two\n")
    log.rename(tmp_path / "log.1")
    append(log, "three\n")
    one.rounds(5)

    assert sorted(one.values()) == ["one", "three", "two"]


@pytest.mark.parametrize("again", ["a\n", "a much longer beginning than before\n" * 100])
def test_a_file_that_was_cut_is_read_from_its_beginning_and_that_is_said(
    follow: Callable[..., Follow], tmp_path: Path, caplog: pytest.LogCaptureFixture, again: str
) -> None:
    log = tmp_path / "log"
    append(log, "one\ntwo\n")
    one = follow(following(log))
    one.rounds(3)

    os.truncate(log, 0)
    append(log, again)
    one.rounds(5)
    one.start()
    one.rounds(5)

    assert sorted(one.values()) == sorted(["one", "two", *again.splitlines()])
    assert f"{log} was cut, or holds something else than it did: it is read from its beginning" in caplog.text


def test_a_file_that_was_cut_while_nobody_read_is_noticed(follow: Callable[..., Follow], tmp_path: Path) -> None:
    log = tmp_path / "log"
    append(log, "header\none\n")
    one = follow(following(log))
    one.rounds(3)

    os.truncate(log, 0)
    append(log, "header\nwritten anew\n")
    one.start()
    one.rounds(5)

    assert sorted(one.values()) == ["header", "header", "one", "written anew"]


def test_what_was_seen_and_cut_away_before_it_was_read_is_told(
    follow: Callable[..., Follow], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "log"
    append(log, "one\nunfinished")
    one = follow(following(log))
    one.rounds(3)

    os.truncate(log, 0)
    one.rounds(2)

    assert "of it, at least 10 bytes could not be read" in caplog.text


def test_a_reused_inode_is_another_file(follow: Callable[..., Follow], tmp_path: Path) -> None:
    """The same inode with another content: as if the file system had given the number again."""
    folder = tmp_path / "in"
    folder.mkdir()
    append(folder / "a", "one\n")
    one = follow(following(folder))
    one.rounds(3)

    with open(folder / "a", "r+b") as file:
        file.truncate(0)
        file.write(b"two\n")
    (folder / "a").rename(folder / "b")
    one.start()
    one.rounds(5)

    assert sorted(one.values()) == ["one", "two"]
    assert len(one.feed().splits()) == 2


def test_a_folder_gives_its_new_files_and_each_once_under_whatever_name(
    follow: Callable[..., Follow], tmp_path: Path
) -> None:
    append(tmp_path / "a", "a1\n")
    one = follow(following(tmp_path))
    one.rounds(3)
    append(tmp_path / "b", "b1\n")
    append(tmp_path / ".hidden", "no\n")
    append(tmp_path / "old.gz", "no\n")
    one.rounds(3)

    (tmp_path / "a").rename(tmp_path / "c")
    os.link(tmp_path / "b", tmp_path / "d")
    append(tmp_path / "c", "a2\n")
    one.rounds(3)
    one.start()
    one.rounds(3)

    assert sorted(one.values()) == ["a1", "a2", "b1"]
    assert len(one.feed().splits()) == 2


def test_many_new_files_are_read_a_few_at_a_time(follow: Callable[..., Follow], tmp_path: Path) -> None:
    for number in range(200):
        append(tmp_path / f"f{number}", f"{number}\n")
    one = follow(following(tmp_path))
    most = 0

    def is_done() -> bool:
        nonlocal most
        opened = psutil.Process().open_files()
        most = max(most, sum(each.path.startswith(str(tmp_path)) for each in opened))
        return len(one.values()) == 200

    one.until(is_done)

    assert sorted(map(int, one.values())) == list(range(200))
    assert 0 < most <= 64


def test_very_short_lines_come_in_bounded_portions(follow: Callable[..., Follow], tmp_path: Path) -> None:
    append(tmp_path / "log", "\n" * 100_000)
    one = follow(following(tmp_path / "log"))
    source = open_source(one.spec, one.feed())
    reader = source.look(1)[0].open(None)

    sizes = [len(reader.read().batch) for _ in range(25)]

    assert sizes == [4_000] * 25
    reader.close()


def test_files_of_one_number_on_two_devices_are_two_files(
    follow: Callable[..., Follow], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        append(tmp_path / name, f"{name}\n")
    monkeypatch.setattr(growing, "_key", lambda facts: (facts.st_ino, 7))  # as if each had a device of its own
    one = follow(following(tmp_path))
    one.rounds(3)
    one.start()
    append(tmp_path / "b", "more\n")
    one.rounds(3)

    assert sorted(one.values()) == ["a", "b", "more"]


def test_a_file_that_could_not_be_opened_vanished_and_came_back_is_read(
    follow: Callable[..., Follow], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path / "a", "a\n")
    real, taken_away = os.open, True

    def refuse(path: Any, *args: Any, **more: Any) -> int:
        if taken_away and str(path).endswith("/a"):
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **more)

    monkeypatch.setattr("pipeline.sources.growing.os.open", refuse)
    one = follow(following(tmp_path))
    one.rounds(6)
    other = tmp_path.parent / f"{tmp_path.name}-other"
    other.mkdir()
    (tmp_path / "a").rename(other / "a")
    one.rounds(1)
    (other / "a").rename(tmp_path / "a")
    taken_away = False

    one.until(lambda: one.values() == ["a"])


def test_a_file_that_has_gone_is_forgotten_after_a_week_and_one_that_is_there_is_not(
    follow: Callable[..., Follow], tmp_path: Path
) -> None:
    for name in ("stays", "goes"):
        append(tmp_path / name, f"{name}\n")
    one = follow(following(tmp_path))
    one.rounds(3)
    (tmp_path / "goes").unlink()
    one.rounds(40)
    assert len(one.feed().splits()) == 2

    one.slept += growing.FORGET_SECONDS
    one.rounds(120)
    append(tmp_path / "stays", "still\n")
    one.rounds(3)

    assert len(one.feed().splits()) == 1
    assert sorted(one.values()) == ["goes", "stays", "still"]


def test_a_line_that_is_too_long_is_a_dead_letter_and_the_next_ones_go_on(
    follow: Callable[..., Follow], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growingfile, "LINE_BYTES", 4_000)
    monkeypatch.setattr(growingfile, "READ_BYTES", 1_000)
    log = tmp_path / "log"
    append(log, "one\n" + "x" * 9_000)
    one = follow(following(log))
    one.rounds(10)
    assert one.values() == ["one"]

    append(log, "y" * 5_000 + "\ntwo\n")
    one.rounds(20)
    one.start()
    append(log, "three\n")
    one.rounds(5)

    assert one.values() == ["one", "two", "three"]
    (letter,) = one.job.letters()
    assert "line at byte 4: a line of 14,001 bytes, and 4,000 is the most" in letter.error


def test_bytes_that_are_no_text_are_replaced_and_json_that_is_none_is_a_dead_letter(
    follow: Callable[..., Follow], tmp_path: Path
) -> None:
    append(tmp_path / "log", b'\xef\xbb\xbf"first"\n{"a": 1}\n\n{broken\n\xff\n[2]\n')

    one = follow(read.json(tmp_path / "log", follow=True))
    one.rounds(3)

    assert one.values() == ["first", {"a": 1}, [2]]
    places = [letter.error.partition("log: ")[2][:24] for letter in one.job.letters()]
    assert places == ["line at byte 21: no JSON", "line at byte 29: no JSON"]


def test_every_csv_file_has_its_own_header_and_types_are_those_that_were_given(
    follow: Callable[..., Follow], tmp_path: Path
) -> None:
    append(tmp_path / "1.csv", "\nid,name\n1,a\n")
    append(tmp_path / "2.csv", "name,id,more\nb,2,x\n")
    one = follow(read.csv(tmp_path, columns=["id", "name"], types={"id": "int"}, follow=True))
    one.rounds(3)
    append(tmp_path / "1.csv", "3,7\nbad,x\n")
    one.start()
    one.rounds(3)

    assert sorted(one.values(), key=lambda row: row["id"]) == [
        {"id": 1, "name": "a"},
        {"id": 2, "name": "b"},
        {"id": 3, "name": "7"},
    ]
    assert "column 'id': 'bad' is no int" in one.job.letters()[0].error


def test_a_csv_file_without_a_column_ends_the_job_with_the_names_that_are_there(
    follow: Callable[..., Follow], tmp_path: Path
) -> None:
    append(tmp_path / "1.csv", "id,name\n1,a\n")
    one = follow(read.csv(tmp_path, columns=["ident"], follow=True))

    with pytest.raises(InputError, match=r"1\.csv: there is no column 'ident'") as caught:
        one.start().run()

    assert caught.value.hint == "the header names: id, name"


def test_a_file_that_may_not_be_read_is_waited_for_and_does_not_hold_the_others(
    follow: Callable[..., Follow], tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path / "a", "a\n")
    append(tmp_path / "b", "b\n")
    real, taken_away = os.open, True

    def refuse(path: Any, *args: Any, **more: Any) -> int:
        if taken_away and str(path).endswith("/a"):
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **more)

    monkeypatch.setattr("pipeline.sources.growing.os.open", refuse)
    one = follow(following(tmp_path))
    one.rounds(5)
    assert one.values() == ["b"]
    assert "a cannot be opened: Permission denied (check the file and its permissions)" in caplog.text

    taken_away = False

    one.until(lambda: sorted(one.values()) == ["a", "b"])


def test_a_file_that_a_folder_took_the_place_of_is_waited_for(
    follow: Callable[..., Follow], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "log"
    append(log, "one\n")
    one = follow(following(log))
    one.rounds(3)

    log.rename(tmp_path / "kept")
    log.mkdir()
    append(log / "inside", "not this\n")
    one.rounds(5)
    assert "log is a folder now" in caplog.text
    (log / "inside").unlink()
    log.rmdir()
    append(log, "two\n")

    one.until(lambda: sorted(one.values()) == ["one", "two"])


def test_a_pipe_is_no_file_to_follow(follow: Callable[..., Follow], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(InputError, match="pipe is no ordinary file"):
        follow(following(tmp_path / "pipe")).start().run()


def test_utf_16_is_refused_with_what_to_do(follow: Callable[..., Follow], tmp_path: Path) -> None:
    append(tmp_path / "log", "one\n".encode("utf-16"))

    with pytest.raises(InputError, match="is text in UTF-16"):
        follow(following(tmp_path / "log")).start().run()


@pytest.mark.parametrize("options", [{"reader": "spark"}, {"poll_seconds": 0}, {"poll_seconds": "1"}])
def test_what_cannot_be_followed_is_said_when_the_pipeline_is_built(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(PipelineError, match=r"read\.text: "):
        following(tmp_path, **options)


OPERATIONS = st.lists(
    st.sampled_from(["write", "part", "rotate", "cut", "kill", "before", "after", "round", "many"]),
    max_size=40,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=OPERATIONS, pattern=st.sampled_from(["log", "log*"]), seed=st.integers(1, 6))
def test_whatever_happens_to_the_files_and_the_feeder_each_line_comes_once_and_in_the_order_of_its_file(
    redis_url: str, tmp_path_factory: pytest.TempPathFactory, operations: list[str], pattern: str, seed: int
) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
    folder = tmp_path_factory.mktemp("logs")
    log = folder / "log"
    one = Follow(redis_url, following(folder / pattern), partitions=1, limits=Limits(inbox_records=64))
    written: dict[int, list[str]] = defaultdict(list)
    content, part, rotations = 0, "", 0

    def next_line() -> str:
        return f"{content}:{len(written[content])}"

    def drain() -> None:
        one.until(lambda: len(one.values()) == sum(map(len, written.values())))

    append(log, "")
    for operation in [*operations, "write"]:
        line = next_line()
        match operation:
            case "write" | "many":
                for _ in range(1 if operation == "write" else 300):
                    line = next_line()
                    append(log, line[len(part) :] + "\n")
                    part = ""
                    written[content].append(line)
            case "part":
                if len(part) < len(line):
                    append(log, line[len(part)])
                    part = line[: len(part) + 1]
            case "rotate":
                if part:
                    append(log, line[len(part) :] + "\n")
                    part = ""
                    written[content].append(line)
                if pattern == "log" or rotations == 0:
                    drain()  # a file that nobody saw under its name cannot be known
                rotations += 1
                log.rename(folder / f"log.{rotations}")
                append(log, "")
                content += 1
            case "cut":
                if part:
                    append(log, line[len(part) :] + "\n")
                    part = ""
                    written[content].append(line)
                drain()  # what was not read is lost by a cut, whoever reads
                append(folder / f"copy.{content}", log.read_bytes())
                os.truncate(log, 0)
                content += 1
            case "kill":
                one.start()
            case "round":
                one.rounds(seed)
            case "before" | "after" as moment:
                one.scripts.break_call(moment, seed)
    one.scripts.faults.clear()
    drain()
    one.rounds(5)

    came: dict[int, list[str]] = defaultdict(list)
    for value in one.values():
        came[int(value.partition(":")[0])].append(value)
    assert came == {number: lines for number, lines in written.items() if lines}
    one.close()
