"""Settings of the user's reach the session, with its JVM, and nobody else sees them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from pipeline.spark.settings import SETTINGS_VARIABLE
from tests.e2e.chaos import SMALL_JVM

SCRIPT = """
import json, psutil
from pipeline.spark.session import spark_session
session = spark_session("local[1]")
children = [each for each in psutil.Process().children(recursive=True) if each.status() != psutil.STATUS_ZOMBIE]
lines = [" ".join(each.cmdline()) for each in children]
names = ("spark.driver.memory", "spark.sql.shuffle.partitions", "spark.hadoop.fs.s3a.secret.key", "spark.ui.enabled")
told = {name: session.conf.get(name) for name in names}
runtime = session._jvm.java.lang.Runtime.getRuntime().maxMemory()
hadoop = session._jsc.hadoopConfiguration().get("fs.s3a.secret.key")
print(json.dumps({"told": told, "memory": runtime, "hadoop": hadoop, "lines": lines}))
"""


def test_settings_reach_spark_before_its_jvm_starts_and_stand_in_no_process_list() -> None:
    secret = "hunter2 \N{GREEK SMALL LETTER PI}=:#!"
    lines = ["spark.driver.memory=520m", "spark.sql.shuffle.partitions=3", f"spark.hadoop.fs.s3a.secret.key={secret}"]
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": SMALL_JVM, SETTINGS_VARIABLE: "\n".join(lines)}

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["told"] == {
        "spark.driver.memory": "520m",
        "spark.sql.shuffle.partitions": "3",
        "spark.hadoop.fs.s3a.secret.key": secret,
        "spark.ui.enabled": "false",
    }
    assert found["hadoop"] == secret
    assert 460 << 20 < found["memory"] < 530 << 20
    assert any("java" in line for line in found["lines"])
    assert not any("hunter2" in line for line in found["lines"])
