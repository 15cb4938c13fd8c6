"""Plays a page as a reader would who types all that it shows, in a folder of its own and against a real Redis.

The marks:
  file: NAME               the block is written to that file
  exit: N                  the commands must end with this code, else with 0
  until it prints          the command is given again until it prints what the next block says
  terminal: TEXT           started, and left running when TEXT was shown; terminals count from 1
  prints                   each line is part of a line that the last commands printed, in this order
  terminal N shows         the same for a terminal, which is waited for
  ctrl-c: N                ends that terminal
`, in any order` may follow the two that compare lines.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from pipeline.embedded.redis import find_redis_server
from tests.compose.engine import free_port
from tests.docs.pages import Block
from tests.e2e.chaos import Site, wait_until

_ANY_ORDER = ", in any order"
_SECONDS = 60.0


class Terminal:
    """A command that goes on. What it prints is in a file."""

    def __init__(self, block: Block, folder: Path, log: Path, environment: dict[str, str]) -> None:
        self._log = log
        self._block = block
        # The page shows the usual port; another server may have it here.
        command = block.text.replace("celeriac flower", f"celeriac flower --port {free_port()}")
        with open(log, "wb") as output:
            self.process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=folder,
                env=environment,
                stdout=output,
                stderr=output,
                # Tests that run in the background of a shell inherit that Ctrl-C is ignored, and a job keeps to that.
                preexec_fn=_heed_ctrl_c,
            )

    def text(self) -> str:
        return self._log.read_text()

    def wait_for(self, lines: list[str], in_order: bool) -> None:
        def is_shown() -> bool:
            assert not missing(lines, self.text(), in_order) or self.process.poll() is None, self._told()
            return not missing(lines, self.text(), in_order)

        wait_until(is_shown, f"{self._block.place} shows {lines}", _SECONDS)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)
        wait_until(lambda: self.process.poll() is not None, f"{self._block.place} ends at Ctrl-C", _SECONDS)
        assert "Traceback" not in self.text(), self._told()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def _told(self) -> str:
        return f"{self._block.place} ended with {self.process.returncode} and had shown:\n{self.text()}"


def _heed_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Story:
    """One page being played. Closed by `with`."""

    def __init__(self, site: Site) -> None:
        self.folder = site.root / "work"
        self.folder.mkdir()
        self.port = free_port()
        self._site = site
        self._terminals: list[Terminal] = []
        self._printed = ""
        self._server = subprocess.Popen(
            [find_redis_server(), "--port", str(self.port), "--save", "", "--appendonly", "no"],
            cwd=site.root,
            env=self._environment(),
            stdout=subprocess.DEVNULL,
        )

    def __enter__(self) -> Story:
        return self

    def __exit__(self, *_: object) -> None:
        for terminal in self._terminals:
            terminal.close()
        self._server.terminate()
        self._server.wait(30)
        self._site.close()

    def play(self, blocks: list[Block]) -> None:
        """All steps in their order. Raises AssertionError at the first that goes another way than the page says."""
        for block, follower in zip(blocks, [*blocks[1:], None], strict=True):
            kind, _, argument = block.mark.partition(": ")
            match kind:
                case "not run":
                    continue
                case "file":
                    (self.folder / argument).write_text(block.text)
                case "terminal":
                    self._open(block, argument)
                case "ctrl-c":
                    self._terminals[int(argument) - 1].interrupt()
                case "until it prints":
                    assert follower is not None
                    self._run_until(block, follower)
                case _ if block.language == "sh":
                    self._run(block, int(argument or 0))
                case _ if kind.startswith("prints"):
                    self._check(block)
                case _ if kind.startswith("terminal ") and "shows" in kind:
                    lines, in_order = expected(block)
                    self._terminals[int(kind.split()[1]) - 1].wait_for(lines, in_order)
                case _:
                    raise AssertionError(f"{block.place}: a story does not know what to do with this block")

    def _run(self, block: Block, code: int) -> None:
        done = self._command(block)
        assert done.returncode == code, f"{block.place} ended with {done.returncode}:\n{self._printed}"
        assert "Traceback" not in done.stderr, done.stderr

    def _run_until(self, block: Block, follower: Block) -> None:
        lines, in_order = expected(follower)

        def is_printed() -> bool:
            self._command(block)
            return not missing(lines, self._printed, in_order)

        try:
            wait_until(is_printed, f"{follower.place} is printed", _SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}; at last there was:\n{self._printed}") from error

    def _command(self, block: Block) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text],
            cwd=self.folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
        self._printed = done.stdout + done.stderr
        return done

    def _check(self, block: Block) -> None:
        lines, in_order = expected(block)
        absent = missing(lines, self._printed, in_order)
        assert not absent, f"{block.place} says {absent[0]!r}, but this was printed:\n{self._printed}"

    def _open(self, block: Block, until: str) -> None:
        log = self._site.kept_logs / f"terminal-{len(self._terminals) + 1}"
        terminal = Terminal(block, self.folder, log, self._environment())
        self._terminals.append(terminal)
        terminal.wait_for([until], in_order=True)

    def _environment(self) -> dict[str, str]:
        own = {
            "CELERIAC_REDIS": f"redis://127.0.0.1:{self.port}/0",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        }
        return self._site.environment(**own)


def expected(block: Block) -> tuple[list[str], bool]:
    """The lines of a block that shows output, and whether their order matters."""
    lines = [line.strip() for line in block.text.splitlines() if line.strip()]
    return lines, not block.mark.endswith(_ANY_ORDER)


def missing(lines: Iterable[str], printed: str, in_order: bool) -> list[str]:
    """Those lines that are part of no line that was printed, behind the one before where the order matters."""
    rest, absent = printed.splitlines(), []
    for line in lines:
        at = next((index for index, shown in enumerate(rest) if line in shown), None)
        if at is None:
            absent.append(line)
        elif in_order:
            rest = rest[at + 1 :]
        else:
            del rest[at]
    return absent
