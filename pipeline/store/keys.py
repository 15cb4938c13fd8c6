"""Every Redis key of the project, one function a key. All keys of one job share a hash tag: one script may touch them.

Whatever begins with `celeriac:{job}` belongs to that job and goes with it.
"""

from __future__ import annotations

from zlib import crc32

PREFIX = "celeriac:"
"""Also the prefix of all keys that kombu makes for our queues (its `global_keyprefix`)."""


def jobs() -> str:
    """Sorted set: job id by the time it was made, in milliseconds. Written by create and remove."""
    return PREFIX + "jobs"


def of_job(job: str) -> str:
    """What all keys of the job begin with."""
    return f"{PREFIX}{{{job}}}"


def job(job: str) -> str:
    """Hash: plan, state, reason, made_at, generation, table (version), run_id, gate. Written by the leader.

    now, ahead: the job's clock, in milliseconds, and what it is ahead of the server's, which was set back.
    run_id: of the server that the tokens, leases and restored positions belong to. lost: a line for each thing that
    somebody misses, written by whoever notices; accepted: those of the generation before.
    `dropped`: how many dead letters were dropped. `claim`: `milliseconds nonce` of the run that took the job last.

    `waits:source` -> what a source waits for. Written by its feeder.

    scaling: how its workers are scaled, written by the run; workers_wanted, scaled_at: by the leader. The same three
    with `:pool`: those of a pool other than `main`.
    operation_n: how many lifecycle operations there were. operations: a line for each of the newest that has ended.
    `epoch`: there while commits keep what a savepoint needs. `saving`: its number, until that is let go. `epochs`: how
    many there were. `cut_at`: when the last one was. `restoring`: while the job is filled from a savepoint, by whom.

    shadow: `token job` of the shadow beside it; `tee`: there while it gets the input. code: the only version that may
    work at it.

    held_back: `token` of a backfill, then a line for each source that it holds back. `paused:source` -> since when, and
    which command has held it back and lets it go on, if one has: `milliseconds holder`.

    `submitted`: its workers publish its results. `still:stage` -> since when the stage is paused.
    """
    return of_job(job) + ":job"


def operation(job: str) -> str:
    """Hash: id, about (JSON), kind, stage, to, now, phase, begun_at, since, switched_at: the operation under way.

    Begun from outside, carried on by the leader, gone when it has ended. An upgrade has token, until, done and total
    instead of stage, to, now: it is carried out by the command that holds the token.
    """
    return of_job(job) + ":operation"


def shadow(job: str) -> str:
    """Hash: token, job (id of the shadow), limit and bytes of what waits for it, given_up; report (JSON), answer, and
    `want`: what another command asks for; promoted: when.

    Written by its command, and by append.
    """
    return of_job(job) + ":shadow"


def tee(job: str, stage: int, partition: int) -> str:
    """Stream: entries of an entry inbox that the shadow has not got yet, under their own ids. Written by append."""
    return f"{of_job(job)}:tee:{stage}.{partition}"


def versions(job: str) -> str:
    """List: the versions of the job's pipeline, newest first, each with its time. Written by who runs it, bounded."""
    return of_job(job) + ":versions"


def rollout(job: str) -> str:
    """Hash: worker, or `*` for all others -> `code target` that it is to run, target empty for its own file.

    Written by submit and upgrade, followed by agents. Not there for a job whose workers run what they find.
    """
    return of_job(job) + ":rollout"


def removing(job: str) -> str:
    """Text: how often the removal of the job was begun. While it exists the id is not free."""
    return of_job(job) + ":removing"


def leader(job: str) -> str:
    """Hash: name, token, term, until, server (that it was taken on). The lease of the job's leader."""
    return of_job(job) + ":leader"


def assignment(job: str) -> str:
    """Hash: `stage.partition` -> `worker|incarnation|token`. The truth about ownership. Written by the leader."""
    return of_job(job) + ":assignment"


def moving(job: str) -> str:
    """Hash: `stage.partition` -> `token|worker|incarnation|nonce|asked|why`: a move that the leader wants.

    `token` is the present owner's, `asked` when it was asked for, in milliseconds; 0 while that is only planned.
    """
    return of_job(job) + ":moving"


def moves(job: str) -> str:
    """List: `at|stage.partition|from|to|why|how|pause in ms` of the last moves, newest first. Written by new owners."""
    return of_job(job) + ":moves"


def drained(job: str) -> str:
    """Hash: node -> `milliseconds` since when it is to have no work, or `milliseconds stop`. Written by command."""
    return of_job(job) + ":drained"


def control(job: str) -> str:
    """Stream: control messages (`pipeline.messages`), which say "look"; bounded by the script that appends."""
    return of_job(job) + ":control"


def workers(job: str) -> str:
    """Hash: per worker its incarnation, last heartbeat and report. Written by heartbeats, trimmed by the leader.

    `d:`, `l:worker`: the incarnation whose end its agent saw, and that its agent wants to end.
    """
    return of_job(job) + ":workers"


def senders(job: str) -> str:
    """Hash: sender name -> `id partition`; the counter; counts of finished senders. Written by register and finish."""
    return of_job(job) + ":senders"


def inbox(job: str, stage: int, partition: int) -> str:
    """Stream: the ordered inbox. Appended by senders, trimmed by its owner's commits."""
    return f"{of_job(job)}:inbox:{stage}.{partition}"


def meta(job: str, stage: int, partition: int) -> str:
    """Hash: ownership, position, head, ring flag and counts of one partition. Written by scripts only.

    `mark`: where the inbox ended at the cut of the savepoint that is being written, until the position is behind that.
    restored, restored_end: its position, and the place behind its last entry, when the server's run began.
    moved: `from|why|how|since`, from a change of owner until the new one has acquired it.
    `sent`: records given to each target, as JSON. `left_out`: records passed whose id was known. `letters`: dead
    letters written. See `pipeline.books`.
    switch: the entry at which the number of its stage's partitions changes, until it has passed that; `before` of them
    until then. gate: how many have still to give it their keys. tells: those that wait for it. fresh: it is new.
    """
    return f"{of_job(job)}:meta:{stage}.{partition}"


def log(job: str, stage: int, partition: int) -> str:
    """Hash: the dedup log (`AckedTuple`): sender -> last number; `w:sender` -> its watermark.

    `gone` -> the last numbers of senders that were forgotten, together. `replay` -> records of dead letters put back.
    `n:sink` -> how many records this partition has given a sink that is neither files nor a stream.
    `r:sink` -> how many records of a rotating sink are in parts that `files` names no more.
    `p:sender` -> `number position`: where a source reads on behind that number. Written by append.
    """
    return f"{of_job(job)}:log:{stage}.{partition}"


def ids(job: str, source: str, group: int) -> str:
    """Sorted set: 16-byte digest of a record's own id by the time it was first seen, in milliseconds.

    Written, trimmed by age and number, and given its expiry by append.
    """
    return f"{of_job(job)}:ids:{group}:{source}"


def visitors(job: str) -> str:
    """Sorted set: `stage.partition id name` of a sender without a name of its own by when it was last heard of, in ms.

    Written by those senders; they take themselves out, or the leader does when they are silent for long.
    """
    return of_job(job) + ":visitors"


def waiting(job: str, stage: int, partition: int) -> str:
    """Hash: meta keys of the partitions that found this inbox full."""
    return f"{of_job(job)}:waiting:{stage}.{partition}"


def state(job: str, stage: int, group: int) -> str:
    """Hash: the state of the keys of one key group. Written by the owner's commits."""
    return f"{of_job(job)}:state:{stage}.{group}"


def timers(job: str, stage: int, operator: str, group: int) -> str:
    """Sorted set: the index of an operator's timers for one key group, by due time."""
    return f"{of_job(job)}:timers:{stage}.{group}:{operator}"


def files(job: str) -> str:
    """Hash: `sink stage.partition.term` -> facts of a staging file. Written by commits, read by the publisher."""
    return of_job(job) + ":files"


def books(job: str) -> str:
    """Hash: name of a finding -> what was found wrong in the job's counts. Written by the leader, bounded."""
    return of_job(job) + ":books"


def decisions(job: str) -> str:
    """List: the last decisions about the number of workers, newest first. Written by the leader, bounded."""
    return of_job(job) + ":decisions"


def dead(job: str) -> str:
    """Stream: dead letters. Bounded by the job failing when there are too many."""
    return of_job(job) + ":dead"


def dead_edits(job: str) -> str:
    """Hash: id of a dead letter -> the payload that its replay takes. Written by edit, trimmed by replay and drop."""
    return of_job(job) + ":deadedits"


def held(job: str, stage: int, group: int) -> str:
    """Hash: key -> what is held behind its dead letter, as numbers. Written by the owner's commits."""
    return f"{of_job(job)}:held:{stage}.{group}"


def held_records(job: str, stage: int, group: int) -> str:
    """Hash: `number key` -> held records of that key, in pieces. Written and taken away by the owner's commits."""
    return f"{of_job(job)}:heldrecords:{stage}.{group}"


def out(job: str, sink: str) -> str:
    """Stream: a readable output. Appended by commits, trimmed to the slowest reader."""
    return f"{of_job(job)}:out:{sink}"


def out_meta(job: str, sink: str) -> str:
    """Hash: head, restored_end and readers' positions of an output stream; the counterpart of `meta`."""
    return f"{of_job(job)}:outmeta:{sink}"


def out_log(job: str, sink: str) -> str:
    """Hash: sender -> last number in an output stream; the counterpart of `log`."""
    return f"{of_job(job)}:outlog:{sink}"


def out_waiting(job: str, sink: str) -> str:
    """Hash: meta keys of the partitions that found this output full."""
    return f"{of_job(job)}:outwaiting:{sink}"


def savepoint(job: str) -> str:
    """Hash: epoch, token, name, until, cut_at, bytes kept, limit, given_up: the savepoint that is being written.

    Written by its exporter, and by commits, which count what they keep. Key of a kept inbox -> bytes of it.
    """
    return of_job(job) + ":savepoint"


def was_names(job: str) -> str:
    """Set: the keys that hold how things were at the cut. All go when the savepoint is written, or given up."""
    return of_job(job) + ":was"


def was(job: str, key: str) -> str:
    """What a key of the job held at the cut: a copy, or only what was changed since. Written by cut and commit."""
    return of_job(job) + ":was" + key.removeprefix(of_job(job))


def queue_name(job: str, stage: int, partition: int) -> str:
    """The Celery queue of a partition; kombu puts PREFIX before it."""
    return f"{{{job}}}.{stage}.{partition}"


def queue(job: str, stage: int, partition: int) -> str:
    """List: the tickets of a partition, at most one while its ring flag is set."""
    return PREFIX + queue_name(job, stage, partition)


def worker_queue_name(job: str, worker: str) -> str:
    """A queue of the worker's own: Celery wants one to start with. Nothing is ever sent to it."""
    return f"{{{job}}}.worker.{worker}"


def own_leader_name(job: str) -> str:
    """The name of the leader process that a run starts for its job. A job's id may be too long for a name."""
    return f"{job[:60]}-{crc32(job.encode()):08x}"


def leader_queue_name(leader: str) -> str:
    """The queue of one leader process, for its ticks."""
    return f"leader.{leader}"


def leader_queue(leader: str) -> str:
    """List: at most one tick."""
    return PREFIX + leader_queue_name(leader)


def leaders() -> str:
    """Sorted set: leader process by the time it was last heard of, in milliseconds. Written by every leader."""
    return PREFIX + "leaders"
