"""How nodes start the worker that is a Spark streaming query, and what its process reads from its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.cli.nodes import NodeSettings
from pipeline.errors import PipelineError
from stages.member import MemberSettings, worker_spec
from stages.node import child_specs, named_spec
from stages.streaming.main import StreamSettings
from stages.streaming.starting import STREAM_PROGRAM
from stages.supervision import WORKER

NODE = NodeSettings("redis://h", "j", "flow.py", 1, ("in",), "", "/logs", "/tmp", spark="local[2]")
MEMBER = {"CELERIAC_REDIS": "redis://h", "CELERIAC_JOB": "j", "CELERIAC_PIPELINE": "flow.py", "CELERIAC_NODE": "n"}


def test_a_node_of_spark_has_one_worker_which_is_the_query() -> None:
    specs = child_specs(NODE, {"spark": 4})

    assert [spec.name for spec in specs] == ["leader", "spark", "source in"]
    worker = specs[1]
    assert (worker.argv, worker.role, worker.restart, worker.earlier) == (STREAM_PROGRAM, WORKER, True, 4)
    assert worker.log == Path("/logs/spark.log")
    settings = StreamSettings.from_environment({**worker.env, "CELERIAC_INCARNATION": "5-x"})
    assert (settings.master, settings.worker.worker, settings.worker.incarnation) == ("local[2]", "spark", "5-x")
    assert named_spec(NODE, "spark", None).argv == STREAM_PROGRAM
    assert NodeSettings.decode(NODE.encode()) == NODE


def test_a_member_of_spark_has_one_worker_called_after_its_node() -> None:
    settings = MemberSettings.from_environment(
        {**MEMBER, "CELERIAC_PROCESSES": "1", "CELERIAC_ENGINE": "spark", "CELERIAC_STREAM_MASTER": "yarn"}
    )

    assert settings.workers == ["n.spark"]
    spec = worker_spec(settings, "n.spark", 0)
    assert spec.argv == STREAM_PROGRAM
    assert StreamSettings.from_environment(spec.env).master == "yarn"
    plain = MemberSettings.from_environment({**MEMBER, "CELERIAC_PROCESSES": "2"})
    assert plain.workers == ["n.w0", "n.w1"]
    assert worker_spec(plain, "n.w0", 0).argv != STREAM_PROGRAM


def test_an_interval_that_is_no_number_is_named() -> None:
    environment = {**MEMBER, "CELERIAC_WORKER": "spark", "CELERIAC_STREAM_INTERVAL": "soon"}

    with pytest.raises(PipelineError, match="CELERIAC_STREAM_INTERVAL is no number of seconds: 'soon'"):
        StreamSettings.from_environment(environment)
