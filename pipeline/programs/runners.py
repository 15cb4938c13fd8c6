"""The runners of external operators: a batch goes to the operator's program, and its outputs come back.

Used by one thread. A program starts when its first batch comes, once for each process that carries a stage.
"""

from __future__ import annotations

import logging
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Any, Final, Protocol

from pipeline.embedded.process import exit_words
from pipeline.errors import EnvironmentFault, PipelineError, ProgramError
from pipeline.graph import External, Node
from pipeline.kernel.chain import inherit
from pipeline.kernel.contract import Emitted, Runner
from pipeline.programs.checking import program_missing
from pipeline.programs.process import Ended, Late, Program
from pipeline.programs.protocols import (
    Answers,
    ForwardAnswers,
    JsonAnswers,
    LineAnswers,
    Malformed,
    Outputs,
    Rejected,
    forward_request,
    json_request,
    lines_request,
)
from pipeline.records import Batch

logger = logging.getLogger(__name__)

_FROM_OUTSIDE: Final = (-signal.SIGKILL, -signal.SIGTERM)
"""The exit codes of a program that did not end by itself."""

_ONCE_MORE: Final = "a program was killed with one record in hand, which is tried once more: operator=%s"

_TO_FLUSH: Final = (
    "it must answer each record and flush at once (python -u, sed -u, jq --unbuffered, stdbuf -oL); "
    "timeout_seconds= gives it more time"
)


class _Runs(Protocol):
    """What the two kinds of runners have in common."""

    def __call__(self, batch: Batch) -> Batch: ...

    def close(self) -> None: ...


class Programs:
    """The programs of all external operators of a graph, in one process. `close` ends those that run."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._runners: dict[str, _Runs] = {
            node.name: _PerBatch(node) if node.protocol == "lines" else _Lasting(node)
            for node in nodes
            if isinstance(node, External)
        }

    @property
    def runners(self) -> Mapping[str, Runner]:
        """By the name of the operator, as the kernel wants them.

        They raise ProgramError and EncodingError for a record, and for what no record is to blame for
        EnvironmentFault (the program cannot be started) or PipelineError.
        """
        return self._runners

    def close(self) -> None:
        """Ends all of them; each gets half a second to do it by itself. A later batch starts them anew."""
        for runner in self._runners.values():
            runner.close()


class _Lasting:
    """A program that answers each record and lives on. It is killed and started anew when it goes wrong."""

    def __init__(self, node: External) -> None:
        self._node = node
        self._program: Program | None = None

    def __call__(self, batch: Batch) -> Batch:
        node = self._node
        if node.protocol == "json":
            outputs = self._ask(json_request(batch), JsonAnswers, len(batch))
            return inherit(node.name, batch, Emitted(*outputs))
        outputs = self._ask(forward_request(batch), ForwardAnswers, len(batch))
        made = inherit(node.name, batch, Emitted(*outputs))
        return Batch(made.values, None, made.times, made.ids)

    def close(self) -> None:
        program, self._program = self._program, None
        if program is not None:
            program.close()

    def _ask(self, request: bytes, kind: Callable[[], Answers], wanted: int) -> Outputs:
        deadline = monotonic() + self._node.timeout_seconds
        try:
            return self._converse(request, kind(), wanted, deadline)
        except Ended:
            logger.warning(_ONCE_MORE, self._node.name)
            return self._converse(request, kind(), wanted, deadline, is_again=True)

    def _converse(
        self, request: bytes, answers: Answers, wanted: int, deadline: float, *, is_again: bool = False
    ) -> Outputs:
        """Raises Ended when the record is to be tried again in another program: see `_may_be_innocent`."""
        program = self._running()
        self._program = None  # one that goes wrong, in whatever way, is not asked again
        try:
            program.converse(request, answers, wanted, deadline)
            outputs = answers.outputs()
        except Rejected as error:
            self._program = program
            raise ProgramError(f"{program.command} refused the record: {error}") from error
        except Late as error:
            program.kill()
            answered = f"{answers.count} of {wanted} answers" if answers.count else "no answer"
            why = f"{answered} in {self._node.timeout_seconds:g} s"
            raise _failure(self._node, program, why, _TO_FLUSH) from error
        except Ended as error:
            how = program.end()
            if not is_again and _may_be_innocent(program.exit_code, wanted):
                raise
            raise _failure(self._node, program, f"{how} after {answers.count} of {wanted} answers") from error
        except Malformed as error:
            program.kill()
            raise _failure(self._node, program, str(error)) from error
        self._program = program
        return outputs

    def _running(self) -> Program:
        program = self._program
        if program is not None and program.has_ended:
            logger.warning("a program is started anew: operator=%s, idle, %s", self._node.name, program.end())
            program = None
        return program or _start(self._node)


class _PerBatch:
    """A program that is run once for each batch, as a filter of plain lines is. Its outputs are values and no more."""

    def __init__(self, node: External) -> None:
        self._node = node

    def __call__(self, batch: Batch) -> Batch:
        node = self._node
        if batch.times is not None:
            raise PipelineError(
                f"operator {node.name!r} is a program of plain lines, and its stream has event times, which it loses",
                hint='take the event time behind it, or use protocol="json"',
            )
        request, deadline = lines_request(batch.values), monotonic() + node.timeout_seconds
        program, code, values = self._run(request, deadline)
        if _may_be_innocent(code, len(batch)):
            logger.warning(_ONCE_MORE, node.name)
            program, code, values = self._run(request, deadline)
        if code not in node.exit_codes:
            silent = code == 1 and not program.last_words()
            hint = "a filter that selects nothing, as grep does? then give exit_codes=(0, 1)" if silent else ""
            raise _failure(node, program, exit_words(code), hint)
        return Batch(values)

    def _run(self, request: bytes, deadline: float) -> tuple[Program, int, list[Any]]:
        """(the program, which has ended; its exit code; its outputs)."""
        node, answers = self._node, LineAnswers()
        program = _start(node)
        try:
            code = program.run(request, answers, deadline)
            values, _ = answers.outputs()
        except Late as error:
            program.kill()
            raise _failure(node, program, f"did not end within {node.timeout_seconds:g} s") from error
        except Malformed as error:
            program.kill()
            raise _failure(node, program, str(error)) from error
        return program, code, values

    def close(self) -> None:
        """Nothing runs between two batches."""


def _start(node: External) -> Program:
    try:
        return Program(node.argv, node.memory_bytes)
    except (OSError, subprocess.SubprocessError) as error:
        if shutil.which(node.argv[0]) is None:
            raise program_missing(node) from error
        raise EnvironmentFault(
            f"the program {node.argv[0]!r} of operator {node.name!r} cannot be started: {error}",
            hint="a script needs a first line like #!/bin/sh, and the right to be executed",
        ) from error


def _may_be_innocent(exit_code: int | None, records: int) -> bool:
    """Whether a record that was alone with a program that has ended is to be tried once more.

    Somebody, as Linux when memory is short, may have killed the program, for the second time since its batch began.
    """
    return records == 1 and exit_code in _FROM_OUTSIDE


def _failure(node: External, program: Program, why: str, hint: str = "") -> ProgramError:
    words = program.last_words()
    limit = "" if node.memory_bytes is None else f" (its memory is limited to {node.memory_bytes} bytes)"
    return ProgramError(f"{program.command}: {why}{limit}" + (f"; it said: {words}" if words else ""), hint)
