"""`celeriac verify`: hands over to the verification, which is a program of its own, as no job needs it."""

from __future__ import annotations

import subprocess
import sys

import click

from pipeline.cli.options import JSON


@click.command()
@click.option("--quick", is_flag=True, help="A sample of two minutes.")
@click.option(
    "--scenario", multiple=True, metavar="TEXT", help="Only scenarios with this in their names; may be repeated."
)
@click.option("--processes", type=click.IntRange(1, 64), help="Runs at the same time. Default: the number of cores.")
@click.option(
    "--seeds",
    type=click.IntRange(1),
    metavar="N",
    help="Simulate instead: N jobs in virtual time, on a model of Redis.",
)
@click.option("--seed", type=click.IntRange(0), metavar="S", help="The first seed; alone, that one with all it did.")
@click.option(
    "--exhaustive",
    is_flag=True,
    help="Instead: every interleaving of two workers, a sender and a leader, with a fault.",
)
@JSON
def verify(
    quick: bool,
    scenario: tuple[str, ...],
    processes: int | None,
    seeds: int | None,
    seed: int | None,
    exhaustive: bool,
    as_json: bool,
) -> int:
    """Prove exactly-once on this machine: break jobs off at every command they send, and compare how they end.

    It starts a Redis of its own and touches no other. With --seeds whole jobs are simulated instead, each with faults
    that its seed decides; with --exhaustive a small one is taken through all states that it can reach; neither needs a
    Redis. Exit code 0: every run ended as the one without a fault.
    """
    is_simulated = seeds is not None or seed is not None
    if (quick or bool(scenario)) + is_simulated + exhaustive > 1:
        raise click.UsageError("--seeds and --seed simulate, --exhaustive searches; neither goes with anything else")
    arguments = ["--quick"] if quick else []
    arguments += [part for name in scenario for part in ("--scenario", name)]
    arguments += ["--processes", str(processes)] if processes else []
    arguments += ["--exhaustive"] if exhaustive else []
    arguments += ["--seeds", str(seeds)] if seeds is not None else []
    arguments += ["--seed", str(seed)] if seed is not None else []
    arguments += ["--json"] if as_json else []
    return subprocess.call([sys.executable, "-P", "-m", "verification.main", *arguments])
