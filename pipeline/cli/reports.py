"""Jobs and results as text and as JSON values. Pure."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from pipeline.books import Books
from pipeline.cli.balances import book_lines, books_json
from pipeline.cli.moving import moves_line
from pipeline.cli.progress import duration, plain_line, records_read, stage_rows
from pipeline.cli.scaling import scaling_json, scaling_lines
from pipeline.cli.underway import about_json, operation_json, operation_words, times_json
from pipeline.facts import (
    JobFacts,
    JobRecord,
    Moved,
    OutputFacts,
    ReaderFacts,
    WorkerFacts,
    still_stages,
    waiting_sources,
)
from pipeline.lifecycle import JobState
from pipeline.nodes import has_pools, node_rows, pool_rows, unserved_stages
from pipeline.plan import STREAM_FORMATS, SinkPlan
from pipeline.sinks.places import FILE_FORMATS, target_path
from pipeline.sinks.publisher import Published
from pipeline.sinks.rotation import rotation_of
from pipeline.store.letters import DeadLetter
from pipeline.versions import Version
from pipeline.wording import counted

SHOWN_PARTITIONS = 8
"""Partitions that a message names."""

SHOWN_LETTERS = 3

_ERROR_CHARACTERS: Final = 300
_DROPPED: Final = {
    "duplicate": "duplicates dropped",
    "late": "late records dropped",
    "skipped": "records that failed skipped",
}
_FRAME: Final = re.compile(r'^  File "([^"]+)", line (\d+)', re.MULTILINE)
_OURS: Final = Path(__file__).parents[1]
_LIBRARIES: Final = frozenset({"site-packages", "dist-packages", f"python{sys.version_info[0]}.{sys.version_info[1]}"})


@dataclass(frozen=True, slots=True)
class Result:
    """What a finished run has to tell. `letters` are the oldest dead letters, `start_seconds` is part of the total."""

    facts: JobFacts
    sinks: Sequence[tuple[SinkPlan, Published]]
    letters: Sequence[DeadLetter]
    total_seconds: float
    start_seconds: float
    is_drained: bool
    given: Mapping[str, int] = field(default_factory=dict)
    """Sink -> records that it was given, of those that write neither files nor streams."""
    books: Books | None = None


def result_lines(result: Result) -> list[str]:
    """The summary at the end of a run."""
    facts = result.facts
    how = "drained: the results hold what was read until then" if result.is_drained else "finished"
    how = facts.record.reason or how  # it has finished, and left its files out
    lines = [f"job {facts.record.job} {how}", f"  read: {counted(records_read(facts), 'record')}"]
    lines += [f"  {sink.name}: {published_words(published)}" for sink, published in result.sinks]
    plans = {sink.name: sink for sink in facts.record.plan.sinks}
    left = [sink for sink in plans.values() if sink.format in FILE_FORMATS] if not result.sinks else []
    lines += [f"  {sink.name}: nothing published, {target_path(sink)} is left as it was" for sink in left]
    lines += [f"  {name}: {given_words(plans[name], count)}" for name, count in result.given.items()]
    for name, label in _DROPPED.items():
        total = sum(getattr(partition, name) for partition in facts.partitions)
        if total:
            lines.append(f"  {label}: {total:,}")
    lines += dead_letter_lines(facts, result.letters)
    if result.books is not None:
        lines += [f"  {line}" for line in book_lines(result.books, facts.alarms)]
    started = duration(result.start_seconds)
    lines.append(f"  time: {duration(result.total_seconds)}, of which {started} until the first record")
    return lines


def given_words(sink: SinkPlan, count: int) -> str:
    match sink.format:
        case "sql":
            kind = "replaced or added" if sink.options["mode"] == "upsert" else "added"
            return f"{counted(count, 'row')} {kind} in {sink.options['table']} of {sink.options['url']}"
        case "kafka":
            return f"{counted(count, 'record')} to the topic {sink.options['topic']}, at least once"
        case "http":
            return f"{counted(count, 'record')} to {sink.options['url']}, at least once"
        case _:
            return f"{counted(count, 'record')} given to its function, at least once"


def dead_letter_lines(facts: JobFacts, letters: Sequence[DeadLetter]) -> list[str]:
    """How many, and what was wrong with the first ones; nothing when there are none."""
    if not facts.dead_letters:
        return []
    # Equal lines are shown once: a function that fails for every record has one thing to tell.
    shown = list(dict.fromkeys(_letter_line(facts, letter) for letter in letters[:SHOWN_LETTERS]))
    held = f", {counted(facts.held, 'record')} held behind" if facts.held else ""
    lines = [f"  dead letters: {counted(facts.dead_letters, 'record')} given up{held}", *shown]
    if facts.dead_letters > len(shown):
        lines.append(f"    and {facts.dead_letters - len(shown):,} more")
    return lines


def status_lines(
    facts: JobFacts, letters: Sequence[DeadLetter], books: Books | None = None, moved: Sequence[Moved] = ()
) -> list[str]:
    """The page of `celeriac status`."""
    record = facts.record
    why = f": {record.reason}" if record.reason else ""
    lines = [
        f"job       {record.job}",
        f"pipeline  {record.plan.pipeline}",
        f"state     {record.state.value}{why}",
        *(f"lost      {_printable(line)}" for line in record.losses),
        *(["          `celeriac run … --job-id … --accept-loss` goes on without that"] if record.losses else []),
        *(f"accepted  {_printable(line)}" for line in record.accepted),
        f"made      {_instant(record.made_at_ms)}, changed {_instant(record.changed_at_ms)}",
        f"leader    {facts.leader or 'none'}",
        f"workers   {_workers(facts) or 'none'}",
        *([f"nodes     {_nodes(facts)}"] if len(node_rows(facts)) > 1 or facts.drained else []),
        *([f"pools     {_pools(facts)}"] if has_pools(facts) else []),
        *([f"moves     {moves_line(moved)}"] if moved else []),
        *([f"versions  {_versions(facts)}"] if running_versions(facts) else []),
        *(f"scaling   {line}" for line in scaling_lines(record, facts.now_ms)),
        *([f"operation {_printable(operation_words(facts, facts.operation))}"] if facts.operation is not None else []),
        *(f"waiting   {source}: {_printable(why)}" for source, why in waiting_sources(record).items()),
        *(f"still     stage {stage}: {why}" for stage, why in still_stages(record).items()),
        *(f"no owner  stage {stage} {why}" for stage, why in unserved_stages(facts).items()),
        *(["input     held back: Redis is nearly full (raise maxmemory)"] if record.gate == "closed" else []),
        "stages",
    ]
    lines += [f"  {plain_line(row)}" for row in stage_rows(None, facts)]
    if facts.outputs:
        lines += ["outputs", *(f"  {line}" for line in output_lines(record.job, facts.outputs))]
    if books is not None:
        lines += book_lines(books, facts.alarms)
    return lines + dead_letter_lines(facts, letters)


def accepted_lines(record: JobRecord) -> list[str]:
    """What a job that goes on without lost writes has lost, and what is there twice from now on."""
    lines = [f"accepted: job {record.job} goes on under generation {record.generation} without what Redis has lost"]
    lines += [f"  lost: {line}" for line in record.accepted]
    lines.append("  files, tables and streams that are read are read again from what Redis has; producers are told")
    for sink in record.plan.sinks:
        harm = _doubled(sink)
        if harm:
            lines.append(f"  {sink.name}: {harm}")
    return lines


def _doubled(sink: SinkPlan) -> str:
    match sink.format:
        case "sql" if sink.options["mode"] == "upsert":
            return "rows behind that are written again; by their key, so each is there once"
        case "sql":
            return f"rows behind that are added again to {sink.options['table']}: what it holds of them is there twice"
        case "http" | "call" | "kafka":
            return "records behind that are sent again, under other idempotency keys"
        case "delta" if sink.options["mode"] == "append":
            return "if its table has them already, rows are added again"
        case _ if sink.format in FILE_FORMATS and rotation_of(sink) is not None:
            return "records behind that may be in two parts"
        case _ if sink.format in STREAM_FORMATS:
            return "result numbers behind what is left are given again, to other results"
    return ""


def output_lines(job: str, outputs: Sequence[OutputFacts]) -> list[str]:
    """Each output and its readers; a full one says whom it waits for, and what can be done about it."""
    lines = []
    for output in outputs:
        kept = counted(output.next_number - output.oldest, "result")
        how = "FULL" if output.waiting else "no readers" if not output.readers else ""
        lines.append(f"{output.name}: {kept} kept" + (f", {how}" if how else ""))
        lines += [f"  {_reader(reader)}" for reader in output.readers]
        if output.waiting and (remedy := full_output(job, output)):
            lines.append(f"  {remedy}")
    return lines


def output_json(output: OutputFacts) -> dict[str, Any]:
    """One output of `celeriac status --json` and `readers list --json`; `oldest` and `next` are positions."""
    return {
        "output": output.name,
        "oldest": output.oldest,
        "next": output.next_number,
        "bytes": output.bytes,
        "waiting_partitions": output.waiting,
        "readers": [
            {
                "name": reader.name,
                "is_temporary": reader.is_temporary,
                "next": reader.next_number,
                "unread": reader.unread,
                "silent_seconds": reader.silent_seconds,
                "expire_seconds": reader.expire_seconds,
            }
            for reader in output.readers
        ],
    }


def full_output(job: str, output: OutputFacts) -> str:
    """Whom a full output waits for; nothing where nobody reads."""
    slowest = output.slowest
    if slowest is None:
        return ""
    stopped = counted(output.waiting, "partition")
    wait = f"{stopped} of the job wait" if output.waiting != 1 else f"{stopped} of the job waits"
    remedy = (
        "it is forgotten when it stays silent"
        if slowest.expire_seconds is not None
        else f"start it, or `celeriac readers remove {job} {output.name} {slowest.name}`"
    )
    return f"{wait} for the reader {slowest.name}: {remedy}"


def _reader(reader: ReaderFacts) -> str:
    who = "a reader without a name" if reader.is_temporary else f"reader {reader.name}"
    unread = f"{counted(reader.unread, 'result')} unread"
    return f"{who}: at {reader.next_number:,}, {unread}, heard {duration(reader.silent_seconds)} ago"


def status_json(facts: JobFacts, letters: Sequence[DeadLetter], books: Books | None = None) -> dict[str, Any]:
    """What `celeriac status --json` prints. Times are milliseconds since 1970 by the clock of Redis."""
    return {
        **job_json(facts.record),
        "now_ms": facts.now_ms,
        "leader": facts.leader,
        "waiting_sources": waiting_sources(facts.record),
        "paused_stages": still_stages(facts.record),
        "unserved_stages": unserved_stages(facts),
        "pools": [asdict(row) for row in pool_rows(facts)],
        "workers": [
            {"name": each.name, "age_seconds": each.age_seconds, "is_reported_dead": each.is_reported_dead}
            for each in facts.workers
        ],
        "versions": running_versions(facts),
        "scaling": scaling_json(facts.record),
        "operation": operation_json(facts),
        "stages": [
            {
                "name": row.name,
                "taken": row.taken,
                "emitted": row.emitted,
                "backlog": row.backlog,
                "partitions": row.partitions,
                "done": row.done,
            }
            for row in stage_rows(None, facts)
        ],
        "outputs": [output_json(output) for output in facts.outputs],
        **({"books": books_json(books, facts.alarms)} if books is not None else {}),
        "dead_letters": facts.dead_letters,
        "held": facts.held,
        "first_dead_letters": [
            {
                "id": letter.id,
                "operator": _operator(facts, letter),
                "error": letter.error,
                "traceback": letter.traceback,
            }
            for letter in letters[:SHOWN_LETTERS]
        ],
    }


def job_line(record: JobRecord, code: str, now_ms: int) -> str:
    """One line of `celeriac list`: job, state, pipeline, code version, when it was made, age."""
    age = duration(max(0.0, (now_ms - record.made_at_ms) / 1000))
    made = _instant(record.made_at_ms)
    return f"{record.job}  {record.state.value}  {record.plan.pipeline}  {code or '-'}  {made}  {age} old"


def job_json(record: JobRecord) -> dict[str, Any]:
    """One job of `celeriac list --json`."""
    return {
        "job": record.job,
        "pipeline": record.plan.pipeline,
        "state": record.state.value,
        "reason": record.reason,
        "made_at_ms": record.made_at_ms,
        "changed_at_ms": record.changed_at_ms,
        "generation": record.generation,
        "lost": list(record.losses),
        "accepted": list(record.accepted),
    }


def history_lines(record: JobRecord, versions: Sequence[Version] = ()) -> list[str]:
    """The page of `celeriac history`: a line for each change of state, each version of the code and each operation."""
    lines = [
        (
            change.at_ms,
            f"{_instant(change.at_ms)}  {change.state.value}"
            + (f"  {_printable(change.reason)}" if change.reason else ""),
        )
        for change in record.history
    ]
    lines += [(each.at_ms, f"{_instant(each.at_ms)}  {_version_words(each)}") for each in versions]
    lines += [
        (past.at_ms, f"{_instant(past.at_ms)}  " + _printable(f"{past.about.change}: {past.outcome}"))
        for past in record.operations
    ]
    return [line for _, line in sorted(lines, key=lambda pair: pair[0])]


def _version_words(version: Version) -> str:
    begun = f" from {version.savepoint}" if version.savepoint else ""
    return _printable(f"version {version.code} of {version.file} {version.how} by {version.by}{begun}")


def history_json(record: JobRecord, versions: Sequence[Version] = ()) -> list[dict[str, Any]]:
    """What `celeriac history --json` prints: changes of state, versions, operations, in the order of time."""
    rows: list[dict[str, Any]] = [
        {"at_ms": each.at_ms, "state": each.state.value, "reason": each.reason} for each in record.history
    ]
    rows += [{"at_ms": each.at_ms, "version": version_json(each)} for each in versions]
    rows += [
        {"at_ms": past.at_ms, "operation": past.about.kind, **about_json(past.about), **times_json(past)}
        for past in record.operations
    ]
    return sorted(rows, key=lambda row: int(row["at_ms"]))


def version_json(version: Version) -> dict[str, Any]:
    """One version of a job's pipeline."""
    return {
        "how": version.how,
        "code": version.code,
        "fingerprint": version.fingerprint,
        "file": version.file,
        "by": version.by,
        "savepoint": version.savepoint,
    }


def running_versions(facts: JobFacts) -> dict[str, int]:
    """Code version -> how many of the workers that are heard of run it."""
    lease = facts.record.plan.limits.lease_seconds
    alive = [each for each in facts.workers if each.age_seconds < lease and not each.is_reported_dead]
    return dict(Counter(str(each.report["code"]) for each in alive if each.report.get("code")))


def undrained(facts: JobFacts) -> str:
    """What a job that drains still has to do, by stage and partition."""
    if facts.record.state is JobState.PUBLISHING:
        who = "one of its workers" if facts.record.is_submitted else "the process that runs it"
        return f"all is processed, and its results wait for {who} to publish them"
    left = [part for part in facts.partitions if not part.done]
    shown = [
        f"stage {facts.record.plan.stage(part.stage).name!r} partition {part.partition} has "
        + (counted(part.backlog, "record") if part.backlog else "not met its end")
        for part in sorted(left, key=lambda part: -part.backlog)[:SHOWN_PARTITIONS]
    ]
    more = len(left) - len(shown)
    standing = _standing(facts)
    return "; ".join(shown) + (f"; and {more} more" if more > 0 else "") + standing


def in_flight(facts: JobFacts) -> str:
    """What a job still has in flight, by stage and partition, and what that waits for."""
    left = [part for part in facts.partitions if not part.at_end]
    waits = {name: why for worker in facts.workers for name, why in _waits(worker).items()}
    shown = [
        f"stage {facts.record.plan.stage(part.stage).name!r} partition {part.partition} has "
        + (counted(part.backlog, "record") if part.backlog else "a watermark in hand")
        + (f" ({waits[part.name]})" if part.name in waits else "")
        for part in sorted(left, key=lambda part: -part.backlog)[:SHOWN_PARTITIONS]
    ]
    more = len(left) - len(shown)
    standing = _standing(facts)
    return ("; ".join(shown) or "it was quiet a moment later") + (f"; and {more} more" if more > 0 else "") + standing


def _standing(facts: JobFacts) -> str:
    """Stages that are held up as a whole, and by what."""
    still = "".join(f"; stage {stage!r} is {why}" for stage, why in still_stages(facts.record).items())
    return still + "".join(f"; stage {stage!r} {why}" for stage, why in unserved_stages(facts).items())


def _waits(worker: WorkerFacts) -> dict[str, str]:
    """Partition -> why its worker waits with it."""
    hands = worker.report.get("hand")
    found = {}
    for name, hand in hands.items() if isinstance(hands, dict) else ():
        why = hand.get("why") if isinstance(hand, dict) else None
        if why == "full":
            found[name] = "waits for a full inbox"
        elif why == "backoff":
            found[name] = f"waits: {_printable(str(hand.get('reason', 'it is tried again')))}"
    return found


def published_words(published: Published) -> str:
    files, records = counted(published.files, "file"), counted(published.records, "record")
    return f"{published.path} ({files}, {records})"


def _workers(facts: JobFacts) -> str:
    return ", ".join(
        f"{each.name} ({'dead' if each.is_reported_dead else f'heard {each.age_seconds:.1f} s ago'})"
        for each in facts.workers
    )


def _nodes(facts: JobFacts) -> str:
    rows = [f"{row.name or '?'} ({row.state}, {counted(row.partitions, 'partition')})" for row in node_rows(facts)]
    return f"{', '.join(rows)}; celeriac node list {facts.record.job} shows more"


def _pools(facts: JobFacts) -> str:
    return ", ".join(
        f"{row.name} ({counted(row.live, 'worker')}, {counted(row.partitions, 'partition')})"
        for row in pool_rows(facts)
    )


def _versions(facts: JobFacts) -> str:
    return ", ".join(f"{code} ({counted(number, 'worker')})" for code, number in running_versions(facts).items())


def _instant(milliseconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(milliseconds / 1000))


def _letter_line(facts: JobFacts, letter: DeadLetter) -> str:
    return error_line(_operator(facts, letter), letter.error, letter.traceback)


def error_line(operator: str, error: str, trace: str) -> str:
    """What was wrong with a record that was given up, in one line, with the place in the user's file."""
    first = _printable(error.strip().partition("\n")[0].rstrip())
    place = _place(trace)
    return f"    {operator}: {first[:_ERROR_CHARACTERS]}" + (f" ({place})" if place else "")


def _operator(facts: JobFacts, letter: DeadLetter) -> str:
    """The operator that gave the record up, or the first one of its stage where none is to blame."""
    return letter.operator or facts.record.plan.stage_name(letter.stage)


def _place(trace: str) -> str:
    """`file.py:12` of the innermost frame that is neither ours nor a library's, or nothing."""
    frames = [(Path(name), line) for name, line in _FRAME.findall(trace)]
    users = [(path, line) for path, line in frames if _OURS not in path.parents and not _LIBRARIES & set(path.parts)]
    return f"{users[-1][0].name}:{users[-1][1]}" if users else ""


def _printable(text: str) -> str:
    """With escapes for what could change the terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
