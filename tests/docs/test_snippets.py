"""The code on every page: what can be run is run, and the rest is at least what the program understands."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest
from celery import Celery

from pipeline import Pipeline
from pipeline.cli.commands import celeriac
from pipeline.plan import compile_plan
from pipeline.settings import Limits
from tests.docs.pages import DOCS, PAGES, Block, blocks, blocks_of
from tests.docs.story import Story
from tests.runtime.harness import LocalJob

PYTHON = blocks("python")
SHELL = blocks("sh")
COMMAND = re.compile(r"(?:^|[|;&(]\s*|\$\()(?:\w+=\S+ )*(?:\S*/)?celeriac (?P<rest>[a-z-]+[^|;&)\n]*)", re.M)


def names(found: list[Block]) -> list[str]:
    return [block.place for block in found]


@pytest.mark.parametrize("block", PYTHON, ids=names(PYTHON))
def test_python_on_a_page_can_be_read_and_imports_what_there_is(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "pipeline":
            module = import_module(str(node.module))
            for alias in node.names:
                assert hasattr(module, alias.name) or import_module(f"{node.module}.{alias.name}"), block.place


COMPLETE = [block for block in PYTHON if re.search(r"= Pipeline\(", block.text) and "import" in block.text]


@pytest.mark.parametrize("block", COMPLETE, ids=names(COMPLETE))
def test_a_pipeline_on_a_page_can_be_submitted(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "snippet"}
    exec(compile(block.text, block.place, "exec"), namespace)

    flows = [value for value in namespace.values() if isinstance(value, Pipeline)]
    assert flows
    for flow in flows:
        assert compile_plan(flow.graph(), 2, Limits()).stages


@pytest.mark.parametrize("block", SHELL, ids=names(SHELL))
def test_commands_on_a_page_can_be_given(block: Block) -> None:
    done = subprocess.run(["bash", "-n", "-c", block.text], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr

    for words in commands_in(block.text):
        check_command(words)


def commands_in(text: str) -> Iterator[list[str]]:
    for match in COMMAND.finditer(re.sub(r"#.*", "", text)):
        yield shlex.split(match["rest"].replace("[", " ").replace("]", " "))


def check_command(words: list[str]) -> None:
    """There is such a command, with each of these options. Raises AssertionError."""
    command: click.Command = celeriac
    while isinstance(command, click.Group):
        name = words[0] if words else ""
        assert name in command.commands, f"there is no command `celeriac {' '.join(words)}`"
        command, words = command.commands[name], words[1:]
    known = {name for option in command.params for name in option.opts}
    for word in words:
        assert not word.startswith("--") or word.partition("=")[0] in known, f"{command.name} has no option {word}"


@pytest.mark.parametrize(
    "text", ["celeriac runs x.py", "celeriac status JOB --jason", "CELERIAC_REDIS=x celeriac tell"]
)
def test_a_command_that_there_is_not_is_noticed(text: str) -> None:
    [words] = commands_in(text)

    with pytest.raises(AssertionError, match=r"there is no command|has no option"):
        check_command(words)


def block_with(page: str, text: str) -> Block:
    return next(block for block in blocks_of(DOCS / page) if text in block.text)


def test_the_first_pipeline_of_the_page_on_pipelines_counts_words(story: Story) -> None:
    (story.folder / "books").mkdir()
    (story.folder / "books" / "a.txt").write_text("to be or\nnot to be\n")
    block = block_with("pipelines.md", 'Pipeline("wordcount")')
    story.play(
        [
            Block(block.page, block.line, "file: words.py", "python", block.text),
            Block("test", 1, "", "sh", "celeriac run words.py --quiet; cat out/words/part-*"),
            Block("test", 2, "prints, in any order", "text", '"to"\n"not"\n'),
        ]
    )


@pytest.fixture
def shop(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalJob]:
    """The job of the page on producers, and its address where its programs look for it."""
    monkeypatch.setenv("CELERIAC_REDIS", redis_url)
    namespace: dict[str, Any] = {}
    exec(block_with("producer.md", 'Pipeline("shop")').text, namespace)
    with LocalJob(redis_url, namespace["flow"], job="shop") as job:
        job.assign()
        yield job


def counts(job: LocalJob) -> dict[Any, Any]:
    job.run_until_idle()
    return job.newest("counts")


def test_the_first_producer_of_its_page_sends_one_record(shop: LocalJob) -> None:
    text = block_with("producer.md", 'id="evt-1"').text
    namespace: dict[str, Any] = {}
    exec(text.replace("redis://host:6379/0", shop.url), namespace)

    assert counts(shop) == {"user-1": 1}
    namespace["producer"].close()


def test_the_web_applications_of_its_page_send_one_record_each(shop: LocalJob) -> None:
    class Request:
        user_id = "flask"
        headers = {"Idempotency-Key": "1"}

    namespace: dict[str, Any] = {}
    exec("from pipeline.producer import Producer\n" + block_with("producer.md", "Idempotency-Key").text, namespace)
    namespace["pay"](Request())
    namespace["producer"].close()

    async def serve() -> None:
        exec(block_with("producer.md", "async def pay").text, namespace)
        await namespace["pay"]("fastapi")
        await namespace["producer"].close()

    asyncio.run(serve())

    assert counts(shop) == {"flask": 1, "fastapi": 1}


def test_the_celery_task_of_its_page_may_run_twice(shop: LocalJob) -> None:
    namespace: dict[str, Any] = {"app": Celery("test", set_as_current=False)}
    exec("from pipeline.producer import Producer\n" + block_with("producer.md", "acks_late").text, namespace)
    namespace["pay"](7)
    namespace["pay"](7)
    namespace["producer"].close()

    assert counts(shop) == {"order-7": 1}


def test_the_programs_of_the_page_on_external_operators_answer_as_it_says() -> None:
    words = block_with("external.md", "for line in sys.stdin")
    answer = run_program([sys.executable, "-c", words.text], json.dumps({"key": None, "value": "a b"}) + "\n")
    assert json.loads(answer) == ["a", "b"]

    hello = block_with("external.md", "while IFS=")
    assert run_program(["sh", "-c", hello.text], "key: k\nvalue: hello\nkey: k\nvalue: bye\n") == (
        "forward\nkey: k\nvalue: hello\nfilter\n"
    )


def run_program(command: list[str], given: str) -> str:
    return subprocess.run(command, input=given, capture_output=True, text=True, check=True, timeout=20).stdout


def test_every_page_says_why_a_block_is_not_run() -> None:
    told = [block for page in PAGES for block in blocks_of(page) if block.mark.startswith("not run")]

    assert all(len(block.mark) > len("not run: ") for block in told), names(told)
