"""`celeriac readers`: who reads the output streams of a job, and taking a reader out that holds it up."""

from __future__ import annotations

import json

import click

from pipeline.cli.groups import Group
from pipeline.cli.options import DEBUG, JOB, JSON, SERVER
from pipeline.cli.reports import output_json, output_lines
from pipeline.client import Client


@click.group(cls=Group)
def readers() -> None:
    """See who reads the results of a job, and remove a reader that holds it up."""


@readers.command("list")
@JOB
@SERVER
@JSON
@DEBUG
def list_readers(job: str, redis_url: str, as_json: bool) -> None:
    """List the outputs of a job and their readers."""
    with Client(redis_url) as client:
        outputs = client.outputs(job)
    if as_json:
        click.echo(json.dumps([output_json(output) for output in outputs], indent=2))
    elif outputs:
        click.echo("\n".join(output_lines(job, outputs)))
    else:
        click.echo("no outputs", err=True)


@readers.command("remove")
@JOB
@click.argument("sink", metavar="SINK")
@click.argument("name", metavar="NAME")
@SERVER
@DEBUG
def remove_reader(job: str, sink: str, name: str, redis_url: str) -> None:
    """Take a reader out: the job keeps nothing for it any more. What it had not read may be gone at once."""
    with Client(redis_url) as client:
        client.remove_reader(job, sink, name)
    click.echo(f"the reader {name} of {sink} is removed from job {job}")
