"""The leader's side of the store: the lease, and the writes that only its holder may make, each fenced by the token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.errors import StaleTerm
from pipeline.plan import Plan, stream_names
from pipeline.settings import Limits
from pipeline.store import keys
from pipeline.store.connection import translated
from pipeline.store.foreign import ours
from pipeline.store.losses import unknown_job
from pipeline.store.outputs import remove_silent
from pipeline.store.scripts import Scripts


@dataclass(frozen=True, slots=True)
class Lease:
    """`token` is empty for who does not lead; `holder` is the leader's name."""

    token: str
    holder: str
    is_new: bool


class Leadership:
    """What one leader process may do to the jobs it leads."""

    def __init__(self, scripts: Scripts, name: str, nonce: str) -> None:
        self._scripts = scripts
        self._name = name
        self._nonce = nonce

    def hold(self, job: str, lease_seconds: float) -> Lease:
        """Takes or renews the lease. Raises UnknownJob, StoreError."""
        answer = self._scripts.run(
            "lease", [keys.leader(job), keys.job(job)], [self._name, self._nonce, int(lease_seconds * 1000)]
        )
        match answer[0]:
            case 1:
                return Lease(answer[1].decode(), self._name, bool(answer[2]))
            case 0:
                holder = answer[1] if len(answer) > 1 else b""  # the name is gone where another program has been
                return Lease("", holder.decode("utf-8", "backslashreplace"), False)
            case _:
                raise unknown_job(job)

    def release(self, job: str, token: str) -> None:
        self._scripts.run("release", [keys.leader(job)], [token])

    def assign(
        self,
        job: str,
        token: str,
        place: tuple[int, int],
        worker: tuple[str, str],
        term: int,
        nonce: str,
        ticket: bytes,
        is_unclean: bool,
        why: str = "",
        still_ms: int = 0,
    ) -> bool:
        """Gives the partition to (worker, incarnation). False when the term is not the next, or the job has ended.

        With `why` the move is kept, with the time for which the partition stands still: it has for `still_ms` by now.
        Raises StaleTerm.
        """
        names = [
            keys.leader(job),
            keys.assignment(job),
            keys.control(job),
            keys.meta(job, *place),
            keys.queue(job, *place),
            keys.job(job),
            keys.moving(job),
        ]
        args = [token, f"{place[0]}.{place[1]}", *worker, term, nonce, ticket, "1" if is_unclean else "0"]
        args += [why, still_ms]
        return self._answer(job, self._scripts.run("assign", names, args)) == 1

    def sweep(self, job: str, token: str, place: tuple[int, int], is_at_work: bool) -> bool:
        """Rings the partition if it has work and no ticket. Raises StaleTerm."""
        names = [keys.leader(job), keys.meta(job, *place), keys.queue(job, *place)]
        return self._answer(job, self._scripts.run("sweep", names, [token, "1" if is_at_work else "0"])) == 1

    def close_source(self, job: str, token: str, plan: Plan, source: str) -> int:
        """Ends the source's input; returns how many inboxes were closed by this call. Raises StaleTerm."""
        stage = plan.entry_stage(source)
        names = [keys.leader(job), keys.job(job)]
        for partition in range(stage.partitions):
            names += [keys.inbox(job, stage.index, partition), keys.meta(job, stage.index, partition)]
        answer = self._scripts.run("close", names, [token, source])
        self._answer(job, answer)
        return int(answer[1])

    def set_gate(self, job: str, token: str, gate: Literal["open", "closed"]) -> None:
        """Opens or closes the job to external appends. Raises StaleTerm."""
        self._answer(job, self._scripts.run("gate", [keys.leader(job), keys.job(job)], [token, gate]))

    def forget_worker(self, job: str, token: str, worker: str, incarnation: str) -> bool:
        """Takes a dead worker out of the registry. Raises StaleTerm."""
        names = [keys.workers(job), keys.leader(job)]
        return self._answer(job, self._scripts.run("forget", names, [token, worker, incarnation])) == 1

    def forget_visitors(self, job: str, token: str, silent_seconds: float, count: int) -> int:
        """Forgets at most `count` senders without a name that were silent for so long; returns how many.

        Raises StaleTerm.
        """
        milliseconds = int(silent_seconds * 1000)
        names = [keys.leader(job), keys.visitors(job)]
        answer = self._scripts.run("silent", names, [token, milliseconds, count])
        self._answer(job, answer)
        forgotten = 0
        for visitor in answer[1]:
            with ours(keys.visitors(job)):
                place, sender, name = visitor.decode().split(" ", 2)
                stage, _, partition = place.partition(".")
                log = keys.log(job, int(stage), int(partition))
            args = [token, visitor, name, sender, milliseconds]
            forgotten += self._answer(job, self._scripts.run("expire", [*names, keys.senders(job), log], args))
        return forgotten

    def remove_silent_readers(self, job: str, token: str, sink: str, limits: Limits) -> list[str]:
        """Takes out the readers of an output stream that have expired; returns their names. Raises StaleTerm."""
        removed = remove_silent(self._scripts, job, token, sink, limits)
        if removed is None:
            raise StaleTerm(f"{self._name} no longer leads job {job!r}")
        return removed

    @property
    def server(self) -> str:
        """The run id of the server that the last call has reached."""
        return self._scripts.server

    def adopt_server(self, job: str, token: str, plan: Plan) -> bool:
        """The job goes on on the run of the server that answers: every ownership of the run before ends, in one step.

        Each partition keeps where it stood then. False when it was done before. Raises StaleTerm.
        """
        names = [keys.leader(job), keys.job(job), keys.assignment(job), keys.control(job)]
        places = plan.partitions()
        names += [keys.meta(job, *place) for place in places]
        names += [keys.out_meta(job, stream) for stream in stream_names(plan)]
        return self._answer(job, self._scripts.run("adopt", names, [token, len(places)])) == 1

    def _answer(self, job: str, answer: list[int]) -> int:
        if answer[0] == -1:
            raise StaleTerm(f"{self._name} no longer leads job {job!r}")
        return int(answer[0])


class LeaderRegistry:
    """One leader process among all: its tick queue, and who else is there. Needs no lease, touches no job."""

    def __init__(self, scripts: Scripts, name: str) -> None:
        self._scripts = scripts
        self._name = name

    def ring(self, tick: bytes) -> bool:
        """Queues the tick unless one is queued already; True if it did. Raises StoreError."""
        return bool(self._scripts.run("tick", [keys.leader_queue(self._name)], [tick])[0])

    def announce(self, silent_seconds: float) -> list[str]:
        """Says that this leader is here; returns those not heard of for so long. Raises StoreError."""
        answer = self._scripts.run("announce", [keys.leaders()], [self._name, int(silent_seconds * 1000)])
        # A name that is none of a leader's has no queue to take away either.
        return [name for name in (member.decode("utf-8", "replace") for member in answer) if "\ufffd" not in name]

    def heard_seconds(self) -> float | None:
        """Seconds since this leader was last heard of; None if it is not there. Raises StoreError."""
        with translated():
            at_ms = self._scripts.client.zscore(keys.leaders(), self._name)
            seconds, micros = self._scripts.client.time()
        return None if at_ms is None else max(0.0, seconds + micros / 1e6 - at_ms / 1000)

    def others(self, silent_seconds: float) -> list[str]:
        """All leaders that were heard of within so many seconds. Raises StoreError."""
        with translated():
            seconds, _ = self._scripts.client.time()
            raw = self._scripts.client.zrangebyscore(keys.leaders(), 1000 * (seconds - silent_seconds), "+inf")
        return [name.decode("utf-8", "replace") for name in raw]

    def retire(self, leader: str, silent_seconds: float) -> bool:
        """Takes a silent leader out, with its tick queue. False if it was heard of since. Raises StoreError."""
        names = [keys.leaders(), keys.leader_queue(leader)]
        return bool(self._scripts.run("retire", names, [leader, max(1, int(silent_seconds * 1000))])[0])

    def leave(self) -> None:
        """Takes this leader out, with its tick queue. Raises StoreError."""
        self._scripts.run("retire", [keys.leaders(), keys.leader_queue(self._name)], [self._name, 0])
