"""`celeriac dead-letters`: what was given up, as text and JSON, and what people do about it."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

import click

from pipeline.codec import decode_batch
from pipeline.errors import DecodingError, LetterError
from pipeline.plan import Plan
from pipeline.records import MAX_TIME
from pipeline.store.letters import DeadLetter, LetterStore
from pipeline.wording import counted

_LINE: Final = 80
_KEY: Final = 12


def list_lines(plan: Plan, letters: Iterable[DeadLetter], now_ms: int) -> Iterable[str]:
    """One line of at most 80 characters each: id, age, operator, key, what is held behind it, error."""
    for letter in letters:
        line = f"{letter.id}  {_age(letter, now_ms):>4}  {letter.operator or _stage(plan, letter)}  {_key(letter)}"
        line += f"  holds {letter.behind:,}" if letter.behind else ""
        yield _cut(f"{line}  {' '.join(letter.error.split())}", _LINE)


def letter_lines(plan: Plan, letter: DeadLetter) -> list[str]:
    """The page of one letter."""
    made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(_made_ms(letter) / 1000))
    lines = [
        f"id         {letter.id}, given up at {made}",
        f"stage      {_stage(plan, letter)}, partition {letter.partition}",
        f"operator   {letter.operator or '-'}",
        f"error      {letter.error}",
    ]
    lines += [f"replay of  {letter.replay_of}"] if letter.replay_of else []
    facts = letter_json(plan, letter)
    lines += [f"key        {json.dumps(facts['key'], ensure_ascii=False)}"] if facts["key"] is not None else []
    if letter.holds:
        records = counted(letter.behind, "record")
        lines.append(f"holds      {records} of key {json.dumps(facts['key'], ensure_ascii=False)}")
    lines.append(f"value      {json.dumps(facts['value'], ensure_ascii=False)}")
    if letter.edited:
        lines.append(f"edited to  {json.dumps(facts['edited'], ensure_ascii=False)}")
    for attempt in letter.tried:
        at, number, why = attempt.split(" ", 2)
        lines.append(f"attempt {number}  {time.strftime('%H:%M:%S', time.localtime(int(at) / 1000))}  {why}")
    if letter.traceback:
        lines += ["", letter.traceback.rstrip()]
    return lines


def letter_json(plan: Plan, letter: DeadLetter) -> dict[str, Any]:
    """The letter for programs. Bytes are base64 text; what JSON does not have is text."""
    key, value = _parts(letter.payload)
    return {
        "id": letter.id,
        "kind": letter.kind,
        "stage": _stage(plan, letter),
        "partition": letter.partition,
        "operator": letter.operator,
        "error": letter.error,
        "key": key,
        "value": value,
        "edited": _parts(letter.edited)[1] if letter.edited else None,
        "replay_of": letter.replay_of or None,
        "holds": letter.behind if letter.holds else None,
        "attempts": list(letter.tried),
        "traceback": letter.traceback,
    }


def chosen(store: LetterStore, ids: Sequence[str], takes_all: bool, operator: str | None) -> list[str]:
    """The ids that are meant, in their order. Raises UsageError when none are named, LetterError for an unknown one."""
    if ids and (takes_all or operator):
        raise click.UsageError("name letters, or choose them with --all or --operator, not both")
    if ids:
        return sorted((store.get(id_).id for id_ in ids), key=_order)
    if not takes_all and not operator:
        raise click.UsageError("which dead letters? Name their ids, or use --all or --operator NAME")
    return [letter.id for letter in store.read() if operator is None or letter.operator == operator]


def new_value(store: LetterStore, id_: str, given: str | None) -> Any:
    """The value as given on the command line, or as edited in the user's editor. Raises UsageError, LetterError."""
    letter = store.get(id_)
    text = given
    if text is None:
        value = _parts(letter.edited or letter.payload)[1]
        text = click.edit(json.dumps(value, indent=2, ensure_ascii=False) + "\n", extension=".json")
        if text is None:
            raise click.UsageError("nothing was changed: save the file in the editor, or use --value JSON")
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"this is no JSON: {error}; text needs quotation marks: --value '\"text\"'") from error


def replay_all(store: LetterStore, ids: Sequence[str]) -> tuple[int, list[str]]:
    """Replays in order; how many, and why others were not. Raises what holds for all of them, as a full inbox."""
    done, faults = 0, []
    for id_ in ids:
        try:
            store.replay(store.get(id_))
            done += 1
        except LetterError as error:
            faults.append(str(error))
    return done, faults


def _parts(payload: bytes) -> tuple[Any, Any]:
    try:
        batch = decode_batch(payload)
        return _plain(batch.keys[0]) if batch.keys else None, _plain(batch.values[0])
    except (DecodingError, IndexError, RecursionError):  # no record, or one that is nested deeper than we can show
        return None, base64.b64encode(payload).decode()


def _plain(value: Any) -> Any:
    """The value as JSON has it."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _key(letter: DeadLetter) -> str:
    key = _parts(letter.payload)[0]
    return "-" if key is None else _cut(json.dumps(key, ensure_ascii=False), _KEY)


def _stage(plan: Plan, letter: DeadLetter) -> str:
    return plan.stage_name(letter.stage) if letter.kind != "foreign" else "-"


def _age(letter: DeadLetter, now_ms: int) -> str:
    seconds = max(0, now_ms - _made_ms(letter)) // 1000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _made_ms(letter: DeadLetter) -> int:
    """When it was given up; the id of one that another program has written may be any number."""
    return min(int(letter.id.partition("-")[0]), MAX_TIME)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _order(id_: str) -> tuple[int, int]:
    first, _, second = id_.partition("-")
    return int(first), int(second)
