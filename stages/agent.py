"""The node agent: starts, watches, replaces and stops the processes of one node for one job.

It sees a death at once and tells the leader; what to do about partitions is the leader's affair.
"""

from __future__ import annotations

import logging
import math
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from pipeline.errors import DecodingError, EnvironmentFault, PipelineError, StoreError, StoreUnavailable
from stages.supervision import (
    GRACE_SECONDS,
    HEALTHY_SECONDS,
    REPLACED,
    SILENT_SECONDS,
    WORKER,
    AgentCounts,
    AgentStore,
    Child,
    ChildSpec,
    ChildState,
    ChildStatus,
    Done,
    Restart,
    Starter,
    StoreWatch,
    decide_restart,
    execute,
    is_cut_off,
    is_silent,
)

logger = logging.getLogger(__name__)

ROUND_SECONDS = 0.25
_LISTEN_SECONDS = 5.0
"""Between two looks whether workers are heard of, and how large logs are."""

_REAP_SECONDS = 5.0  # a killed process is gone in milliseconds unless its machine is in trouble


class Agent:
    """Keeps the processes of its specs running.

    `start`, `run_once`, `run` and `stop` belong to one thread, which must outlive the children: Linux ties
    them to the thread that started them. `add`, `replace`, `retire` and `children` may be called by any thread.
    """

    def __init__(
        self,
        specs: Iterable[ChildSpec],
        store: AgentStore,
        clock: Callable[[], float] = time.monotonic,
        starter: Starter = execute,
    ) -> None:
        self._store = store
        self._clock = clock
        self._starter = starter
        self._watch = StoreWatch()
        self._poll = select.poll()
        # Guards the table and the requests below; a Child itself is changed by the agent's thread only.
        self._lock = threading.Lock()
        self._children: dict[str, Child] = {}
        self._to_retire: list[tuple[str, float]] = []
        self._to_replace: list[tuple[ChildSpec, float]] = []
        self._listen_at = 0.0
        self._logs_at = 0.0
        self._run_id = ""
        for spec in specs:
            self.add(spec)

    def start(self) -> AgentCounts:
        """Start every child. Raises EnvironmentFault if one cannot be; `stop` then ends the others."""
        now = self._clock()
        waiting = [child for child in self._all() if child.state is ChildState.WAITING]
        for child in waiting:
            self._spawn(child, now)
        self._ask_again(now)  # which notes the run of the server that sources begin with
        return AgentCounts(started=len(waiting))

    def add(self, spec: ChildSpec) -> None:
        """Have the next round start this child too. Raises PipelineError if a living one has its name."""
        with self._lock:
            known = self._children.get(spec.name)
            if known is not None and known.state is not ChildState.DONE:
                raise PipelineError(
                    f"the agent already has a child named {spec.name}",
                    hint="give each process of a node a name of its own",
                )
            self._children[spec.name] = Child(spec)

    def retire(self, name: str, deadline_seconds: float) -> None:
        """Have the next round end this child for good: SIGTERM, and SIGKILL after the deadline."""
        with self._lock:
            if name not in self._children:
                raise PipelineError(f"the agent has no child named {name}", hint="see children() for the names")
            self._to_retire.append((name, deadline_seconds))

    def replace(self, spec: ChildSpec, deadline_seconds: float) -> None:
        """Have the next round end the living child of that name, and start it anew as the spec says."""
        with self._lock:
            if spec.name not in self._children:
                raise PipelineError(f"the agent has no child named {spec.name}", hint="see children() for the names")
            self._to_replace.append((spec, deadline_seconds))

    def children(self) -> tuple[ChildStatus, ...]:
        """All children as they are now, also those that are done."""
        return tuple(child.status() for child in self._all())

    def run(self, stop_event: threading.Event) -> AgentCounts:
        """Rounds until the event is set; that, and a death, ends the wait between two at once. Stops no child."""
        counts = AgentCounts()
        with self._woken_by(stop_event):
            while not stop_event.is_set():
                counts += self.run_once(self._clock())
                self._wait(self._seconds_to_next())
        return counts

    @contextmanager
    def _woken_by(self, event: threading.Event) -> Iterator[None]:
        """In the body a wait ends, too, when the event is set."""
        ears, hand = socket.socketpair()

        def ring() -> None:
            event.wait()
            with suppress(OSError):  # the body has ended already
                hand.send(b"!")

        with ears, hand:
            thread = threading.Thread(target=ring, name="ring", daemon=True)
            self._poll.register(ears, select.POLLIN)
            thread.start()
            try:
                yield
            finally:
                self._poll.unregister(ears)
                if event.is_set():
                    thread.join()  # else it might ring at a number that is another file's by then

    def run_once(self, now: float) -> AgentCounts:
        """One round: bury the dead, end the overdue, start what is due, look after cut-off workers."""
        self._replace_asked(now)
        self._retire_asked(now)
        counts = AgentCounts()
        for child in self._all():
            counts += self._look_after(child, now)
        if now >= self._logs_at:
            self._logs_at = now + _LISTEN_SECONDS
            for child in self._all():
                child.bound_log()
        # Last, since the question may take a while when the store is down.
        self._watch = self._watch.after(self._store.is_up(), now)
        if self._watch.is_due(now):
            self._end_cut_off(now)
        elif self._watch == StoreWatch() and now >= self._listen_at:
            self._listen_at = now + _LISTEN_SECONDS
            self._end_silent(now)
            self._ask_again(now)
        return counts

    def stop(self, deadline_seconds: float, is_hurried: Callable[[], bool] = lambda: False) -> tuple[str, ...]:
        """End all children: SIGTERM to each, wait, SIGKILL at the deadline, or as soon as it is hurried. Returns the
        names of the killed.

        Nothing is restarted and no death is reported; a child that was done stays as it was.
        """
        deadline = self._clock() + deadline_seconds
        children = self._all()
        for child in children:
            if child.state is ChildState.WAITING:
                child.state = ChildState.DONE
            child.is_retired = True
            child.ask_to_end(deadline)
        self._await_end(children, deadline, is_hurried)
        late = [child for child in children if child.has_process]
        for child in late:
            self._kill(child)
        self._await_end(late, self._clock() + _REAP_SECONDS)
        for child in late:
            if child.has_process:
                logger.error("does not end even when killed child=%s pid=%d", child.spec.name, child.pid)
        return tuple(child.spec.name for child in late)

    def _all(self) -> list[Child]:
        with self._lock:
            return list(self._children.values())

    def _look_after(self, child: Child, now: float) -> AgentCounts:
        counts = AgentCounts()
        if child.has_exited():
            self._bury(child, now)
            counts += AgentCounts(deaths=1)
        elif child.state is ChildState.ENDING and now >= child.kill_at:
            self._kill(child)
        elif child.state is ChildState.RUNNING and now - child.started_at > HEALTHY_SECONDS:
            child.quick_deaths = 0
        if child.state is ChildState.WAITING and now >= child.due_at and not self._watch.is_down:
            counts += self._start_due(child, now)
        return counts

    def _kill(self, child: Child) -> None:
        logger.warning("killed at its deadline role=%s child=%s", child.spec.role, child.spec.name)
        child.kill()

    def _spawn(self, child: Child, now: float) -> None:
        child.spawn(now, self._starter)
        self._poll.register(child.pidfd, select.POLLIN)
        logger.info(
            "started role=%s child=%s pid=%d incarnation=%s",
            child.spec.role,
            child.spec.name,
            child.pid,
            child.incarnation,
        )

    def _start_due(self, child: Child, now: float) -> AgentCounts:
        is_first = child.starts == 0
        try:
            self._spawn(child, now)
        except EnvironmentFault as fault:
            logger.error("%s hint=%s", fault, fault.hint)
            self._schedule(child, decide_restart(True, 1, 0.0, child.quick_deaths), now)
            return AgentCounts()
        return AgentCounts(started=1) if is_first else AgentCounts(restarts=1)

    def _bury(self, child: Child, now: float) -> None:
        self._poll.unregister(child.pidfd)
        was_asked = child.state is ChildState.ENDING
        exit_code = child.reap()
        if child.is_retired:
            child.state = ChildState.DONE
            logger.info("retired role=%s child=%s code=%d", child.spec.role, child.spec.name, exit_code)
            return
        if exit_code == REPLACED and child.spec.yields:
            child.state = ChildState.DONE
            logger.error("left to another process of its name role=%s child=%s", child.spec.role, child.spec.name)
            return
        if was_asked:  # by the agent, to start it anew: that says nothing about the health of the child
            decision = decide_restart(True, exit_code, math.inf, 0)
        else:
            lived_seconds = now - child.started_at
            decision = decide_restart(
                child.spec.restart, exit_code, lived_seconds, child.quick_deaths, is_store_down=self._watch.is_down
            )
        self._schedule(child, decision, now)
        if child.state is ChildState.WAITING and child.spec.role == WORKER:
            self._report(child)

    def _schedule(self, child: Child, decision: Done | Restart, now: float) -> None:
        spec = child.spec
        if isinstance(decision, Done):
            child.state = ChildState.DONE
            logger.info("done role=%s child=%s", spec.role, spec.name)
            return
        child.state = ChildState.WAITING
        child.due_at = now + decision.delay_seconds
        if child.quick_deaths == 0:
            child.quick_since = child.started_at
        child.quick_deaths = decision.quick_deaths
        logger.warning(
            "died role=%s child=%s code=%s incarnation=%s restart_in_seconds=%.1f",
            spec.role,
            spec.name,
            child.exit_code,
            child.incarnation,
            decision.delay_seconds,
        )
        if decision.is_new_crash_loop:
            logger.error(
                "dies again and again role=%s child=%s times=%d log=%s, which ends with:\n%s",
                spec.role,
                spec.name,
                decision.quick_deaths,
                spec.log or "-",
                child.log_tail(),
            )

    def _report(self, child: Child) -> None:
        if self._watch.is_down:
            return
        try:
            self._store.report_death(child.spec.name, child.incarnation)
        except StoreError as error:
            # The leader misses the heartbeat two seconds later.
            logger.warning("death not reported child=%s error=%s", child.spec.name, error)

    def _end_cut_off(self, now: float) -> None:
        """Kombu waits up to 30 s before it connects again; a new worker is there in half a second."""
        back_at = self._watch.back_at
        assert back_at is not None
        try:
            for child in self._all():
                if child.spec.role == WORKER and child.state is ChildState.RUNNING:
                    heard_seconds = self._store.heard_from(child.spec.name)
                    if is_cut_off(heard_seconds, child.started_at, back_at):
                        logger.warning("cut off from the store, restarted child=%s", child.spec.name)
                        child.ask_to_end(now + GRACE_SECONDS)
        except StoreUnavailable:
            self._watch = StoreWatch(is_down=True)
        except (StoreError, DecodingError):
            self._watch = StoreWatch()  # removed meanwhile, for one: its workers end by themselves
        else:
            self._watch = replace(self._watch, back_at=None)

    def _end_silent(self, now: float) -> None:
        """One that is only stopped for a while goes on; one that computes without end does not hear SIGTERM either."""
        for child in self._all():
            lived_seconds = now - child.started_at
            if child.spec.role != WORKER or child.state is not ChildState.RUNNING or lived_seconds <= SILENT_SECONDS:
                continue
            try:
                heard_seconds = self._store.heard_from(child.spec.name)
            except (StoreError, DecodingError):
                return  # the next look has a chance, and what is wrong with the job is not for the agent to say
            if is_silent(heard_seconds, lived_seconds):
                logger.error("silent for %.0f s and killed child=%s pid=%d", heard_seconds, child.spec.name, child.pid)
                child.kill()

    def _ask_again(self, now: float) -> None:
        """A server that was restarted may have lost what a source gave last, and that it has given all: nobody else
        would give it again. One that has given all sees that, and ends.
        """
        try:
            before, self._run_id = self._run_id, self._store.run_id()
        except StoreError:
            return  # at the next look
        if before in ("", self._run_id):
            return
        for child in self._all():
            if child.state is ChildState.DONE and not child.is_retired:
                logger.info("asked again, the store was restarted role=%s child=%s", child.spec.role, child.spec.name)
                child.state, child.due_at, child.deaths = ChildState.WAITING, now, 0

    def _retire_asked(self, now: float) -> None:
        with self._lock:
            asked = [(self._children[name], seconds) for name, seconds in self._to_retire]
            self._to_retire.clear()
        for child, deadline_seconds in asked:
            child.is_retired = True
            if child.state is ChildState.WAITING:
                child.state = ChildState.DONE
            child.ask_to_end(now + deadline_seconds)

    def _replace_asked(self, now: float) -> None:
        with self._lock:
            asked = [(self._children[spec.name], spec, seconds) for spec, seconds in self._to_replace]
            self._to_replace.clear()
        for child, spec, deadline_seconds in asked:
            if child.state is ChildState.DONE or child.is_retired:
                continue
            child.spec = replace(spec, earlier=child.spec.earlier)  # its starts are counted on
            child.quick_deaths = 0
            child.due_at = now
            child.ask_to_end(now + deadline_seconds)

    def _seconds_to_next(self) -> float:
        """How long nothing is due, at most one round."""
        now = self._clock()
        wanted = ROUND_SECONDS
        for child in self._all():
            if child.state is ChildState.WAITING and not self._watch.is_down:
                wanted = min(wanted, child.due_at - now)
            elif child.state is ChildState.ENDING:
                wanted = min(wanted, child.kill_at - now)
        return max(0.0, wanted)

    def _wait(self, seconds: float) -> None:
        """Until a child dies, or this long."""
        self._poll.poll(seconds * 1000)

    def _await_end(
        self, children: list[Child], deadline: float, is_hurried: Callable[[], bool] = lambda: False
    ) -> None:
        while any(child.has_process for child in children):
            for child in children:
                if child.has_exited():
                    self._bury(child, self._clock())
            remaining = deadline - self._clock()
            if remaining <= 0 or is_hurried():
                return
            if any(child.has_process for child in children):
                self._wait(min(remaining, ROUND_SECONDS))
