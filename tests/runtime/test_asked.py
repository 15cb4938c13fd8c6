"""Signals that ask a process to end, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap

ROUNDS = 20_000

STORMED = """
import os
import signal
import threading

from stages.asked import Asked

asked = Asked()
asked.listen(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
asked.start()
main = threading.main_thread().ident


def storm():
    for _ in range({rounds}):
        signal.pthread_kill(main, signal.SIGTERM)
    over.set()


over = threading.Event()
thread = threading.Thread(target=storm)
thread.start()
while not over.is_set():
    asked.stop.set()  # which takes the lock that a handler must not want
asked.hurry.wait()
print(asked.stop.is_set(), flush=True)
"""

HEARD = """
import os
import signal

from stages.asked import Asked

asked = Asked()
asked.listen(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
for number in ({signals}):
    os.kill(os.getpid(), number)
asked.start()
asked.stop.wait()
{then}
"""


def output(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


def test_signals_that_interrupt_each_other_and_an_event_do_not_wait_for_themselves() -> None:
    assert output(STORMED.format(rounds=ROUNDS)) == "True\n"


def test_the_second_signal_asks_to_hurry_and_what_came_before_the_thread_counts() -> None:
    told = HEARD.format(signals="signal.SIGTERM, signal.SIGINT", then="asked.hurry.wait(); print('hurries')")

    assert output(told) == "hurries\n"


def test_a_terminal_that_is_closed_may_say_so_twice_and_hurries_nobody() -> None:
    then = "os.kill(os.getpid(), signal.SIGTERM); asked.hurry.wait(); print('by SIGTERM')"
    told = HEARD.format(signals="signal.SIGHUP, signal.SIGHUP", then=f"print(asked.hurry.is_set()); {then}")

    assert output(told) == "False\nby SIGTERM\n"


def test_a_signal_that_was_ignored_stays_ignored() -> None:
    program = """
    import signal
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    from stages.asked import Asked
    Asked().listen(signal.SIGHUP, signal.SIGTERM)
    print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
    """

    assert output(program) == "True False\n"
