"""A savepoint as it is found: its manifest, and the rows of its tables, each checked. Changes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pipeline.errors import EncodingError, SavepointError
from pipeline.savepoints.manifest import MANIFEST, STATE, TABLES, Manifest, read_manifest
from pipeline.savepoints.moving import EntryRow
from pipeline.savepoints.originals import OriginalPage, original_page
from pipeline.savepoints.places import Place, savepoint_at
from pipeline.savepoints.rows import field_of, hide, key_of, read_states, timer_of
from pipeline.savepoints.tables import digest_of, read_columns, read_originals, read_rows, rows_of
from pipeline.store.holds import Hold, read_hold

EDITABLE: Final = (STATE, "timers")
"""Tables that people may change. The others hold what must fit together to the last record."""


@dataclass(frozen=True, slots=True)
class StateRow:
    """The state of one key, as Redis holds it: field of the group's hash, and value."""

    stage: str
    operator: str
    group: int
    key: Any
    field: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class StatePage:
    """Of some keys what a StateRow has, by column."""

    stages: list[str]
    operators: list[str]
    groups: list[int]
    keys: list[Any]
    fields: list[bytes]
    datas: list[bytes]


@dataclass(frozen=True, slots=True)
class TimerRow:
    stage: str
    operator: str
    group: int
    due: int
    member: bytes


class Savepoint:
    """One savepoint. Its folder is not changed, and is not trusted either."""

    def __init__(self, place: Place, name: str) -> None:
        """Raises SavepointError when there is none of that name."""
        self.place = place
        self.name = name
        self.where = f"{place.url.rstrip('/')}/{name}"
        self.manifest: Manifest = read_manifest(place.read(name, MANIFEST), self.where)

    @classmethod
    def at(cls, url: str) -> Savepoint:
        """Raises SavepointError, EnvironmentFault."""
        return cls(*savepoint_at(url))

    def edited(self) -> list[str]:
        """Tables of which a file is not as it was written. Raises SavepointError for a file that is gone."""
        return [table for table in TABLES if not self._is_original(table)]

    def check(self, *, allow_edits: bool) -> list[str]:
        """The tables that were edited. Raises SavepointError for one that may not be, or where none may be."""
        edited = self.edited()
        broken = [table for table in edited if table not in EDITABLE]
        if broken:
            raise SavepointError(
                f"the savepoint {self.where} is damaged: the table {broken[0]!r} is not as it was written",
                hint=f"only {' and '.join(EDITABLE)} may be edited; take the savepoint from a copy",
            )
        if edited and not allow_edits:
            raise SavepointError(
                f"the savepoint {self.where} was changed: the table {edited[0]!r} is not as it was written",
                hint="if you have edited it, say so with --allow-edits: each row is checked then",
            )
        return edited

    def check_rows(self) -> None:
        """Reads what may be edited once to its end. Raises SavepointError for a row that is wrong."""
        for _ in self.states():
            pass
        for _ in self.timers():
            pass

    def _paths(self, table: str) -> list[str]:
        return self.place.files(self.name, table)

    def _is_original(self, table: str) -> bool:
        parts = {part.path: part for part in self.manifest.tables[table]}
        paths = self._paths(table)
        if table not in EDITABLE or not paths:
            missing = [path for path in parts if path not in paths]
            if missing:
                raise SavepointError(f"the savepoint {self.where} is damaged: {missing[0]} is missing")
        return set(paths) == set(parts) and all(
            digest_of(self.place, self.name, path) == part.sha256 for path, part in parts.items()
        )

    def _rows(self, table: str, groups: tuple[int, int] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
        """(where it stands, row); with `groups` those of key groups from the first to the last of them."""
        for path in self._paths(table):
            number = 0
            for page in read_rows(self.place, self.name, table, path, groups):
                for row in page:
                    number += 1
                    if groups is None or groups[0] <= row["group"] <= groups[1]:
                        yield f"{path} row {number}", row

    def facts(self) -> dict[str, dict[str, bytes]]:
        """Hash -> field -> value."""
        found: dict[str, dict[str, bytes]] = defaultdict(dict)
        for _, row in self._rows("facts"):
            found[row["hash"]][row["field"].decode("utf-8", "surrogateescape")] = row["value"]
        return dict(found)

    def entries(self) -> Iterator[EntryRow]:
        """Entries in flight, those of one inbox in order."""
        for _, row in self._rows("in_flight"):
            yield EntryRow(row["stage"], row["partition"], row["entry"], row["header"].encode(), row["payload"])

    def holds(self) -> dict[tuple[str, bytes], Hold]:
        """(stage, field of the key) -> what is held of it."""
        return {(row["stage"], row["field"]): read_hold(row["value"]) for row in self.held() if row["kind"] == "held"}

    def held(self) -> Iterator[dict[str, Any]]:
        """stage, group, kind (held or heldrecords), field, value."""
        return (row for _, row in self._rows("held"))

    def letters(self) -> Iterator[tuple[str, dict[bytes, bytes]]]:
        """Dead letters, oldest first."""
        id_, fields = "", dict[bytes, bytes]()
        for _, row in self._rows("letters"):
            if row["id"] != id_ and fields:
                yield id_, fields
                fields = {}
            id_ = row["id"]
            fields[row["field"]] = row["value"]
        if fields:
            yield id_, fields

    def ids(self) -> Iterator[tuple[str, int, bytes, int]]:
        """(source, group, digest, milliseconds)."""
        return ((row["source"], row["group"], row["digest"], row["seen"]) for _, row in self._rows("ids"))

    def states(self, groups: tuple[int, int] | None = None) -> Iterator[StateRow]:
        """Of all keys, or those of key groups from the first to the last of `groups`. Raises as `state_pages`."""
        for page in self.state_pages(groups):
            columns = (page.stages, page.operators, page.groups, page.keys, page.fields, page.datas)
            yield from map(StateRow, *columns)

    def original_pages(self) -> Iterator[OriginalPage]:
        """State of all keys, of a table that is known to be as it was written: then no key is there twice.

        Raises SavepointError, as `state_pages`.
        """
        stages = self._stages()
        for path in self._paths(STATE):
            number = 0
            for rows in read_originals(self.place, self.name, STATE, path):
                page = original_page(rows, stages)
                if page is None:
                    given = enumerate(rows.to_pylist(), number + 1)
                    found = self._checked([(f"{path} row {at}", row) for at, row in given], stages, set())
                    page = OriginalPage.of_rows(found.operators, found.groups, found.fields, found.datas)
                yield page
                number += rows.num_rows

    def _stages(self) -> dict[str, str]:
        """Operator -> its stage."""
        return {each.operator: self.manifest.plan.stage(each.stage).name for each in self.manifest.plan.states}

    def state_pages(self, groups: tuple[int, int] | None = None) -> Iterator[StatePage]:
        """The same in pages; the fields of all keys are held.

        Raises SavepointError, with file, row, operator and key, for a row that is wrong or is there twice.
        """
        stages, met = self._stages(), set[bytes]()
        for path in self._paths(STATE):
            number = 0
            for columns in read_columns(self.place, self.name, STATE, path, groups):
                size = len(columns["group"])
                wanted: Sequence[int] = range(size)
                if groups is not None:
                    wanted = [at for at in wanted if groups[0] <= columns["group"][at] <= groups[1]]
                    columns = {name: [column[at] for at in wanted] for name, column in columns.items()}
                page = _state_page(columns, stages, met)
                if page is None:
                    rows = zip(wanted, rows_of(columns), strict=True)
                    page = self._checked([(f"{path} row {number + at + 1}", row) for at, row in rows], stages, met)
                yield page
                number += size

    def _checked(
        self, rows: Iterable[tuple[str, dict[str, Any]]], stages: Mapping[str, str], met: set[bytes]
    ) -> StatePage:
        """Row by row. Raises SavepointError for the first that is wrong."""
        page = StatePage([], [], [], [], [], [])
        for where, row in rows:
            operator = row["operator"]
            try:
                if operator not in stages:
                    raise SavepointError("there is no such operator in it")
                if row["stage"] != stages[operator]:
                    raise SavepointError(
                        f"its `stage` is {row['stage']!r}, and the operator is in {stages[operator]!r}"
                    )
                key = key_of(row["key"], row["group"])
                name = field_of(operator, key)
                if name in met:
                    raise SavepointError("the key is there twice")
                met.add(name)
                data = hide(row["value"], row["packed"])
            except (SavepointError, EncodingError) as error:
                raise self._bad(where, row, error) from error
            page.stages.append(row["stage"])
            page.operators.append(operator)
            page.groups.append(row["group"])
            page.keys.append(key)
            page.fields.append(name)
            page.datas.append(data)
        return page

    def timers(self, groups: tuple[int, int] | None = None) -> Iterator[TimerRow]:
        """Raises SavepointError, as `states`."""
        operators = {each.operator for each in self.manifest.plan.states}
        for where, row in self._rows("timers", groups):
            try:
                if row["operator"] not in operators:
                    raise SavepointError("there is no such operator in it")
                if not isinstance(row["due"], int):
                    raise SavepointError("it has no `due`")
                member = timer_of(row["operator"], key_of(row["key"], row["group"]), row["due"])
            except (SavepointError, EncodingError) as error:
                raise self._bad(where, row, error) from error
            yield TimerRow(row["stage"], row["operator"], row["group"], row["due"], member)

    def _bad(self, where: str, row: dict[str, Any], error: Exception) -> SavepointError:
        return SavepointError(
            f"the savepoint {self.where} cannot be restored: {where} (operator {row['operator']!r},"
            f" key {row['key']!r}): {error}"
        )


def _state_page(columns: Mapping[str, list[Any]], stages: Mapping[str, str], met: set[bytes]) -> StatePage | None:
    """None if any row is wrong, or is of a key that was met; then nothing of it is among these."""
    names, operators, groups = columns["stage"], columns["operator"], columns["group"]
    if not set(zip(operators, names, strict=True)) <= stages.items():
        return None
    found = read_states(columns)
    if found is None:
        return None
    keys, fields, datas = found
    distinct = set(fields)
    if len(distinct) < len(fields) or not met.isdisjoint(distinct):
        return None
    met |= distinct
    return StatePage(names, operators, groups, keys, fields, datas)
