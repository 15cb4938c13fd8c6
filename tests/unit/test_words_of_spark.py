"""What of an error of Spark is told: the line that says what is wrong, wherever Spark has put it."""

from __future__ import annotations

import pytest

from pipeline.spark.bulk.faults import translated, words_of

IN_A_TASK = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 4207, in invoke_udf
    func()
    ^^^^^^
  File "helpers.py", line 2, in changed
    return 1 / 0
           ~~^~~

ZeroDivisionError: division by zero
"""

OF_CONNECT = """(org.apache.spark.api.python.PythonException) Thrown from the worker: Traceback (most recent call last):
  File "worker.py", line 4207, in invoke_udf
    raise KeyError("a")
KeyError: 'a'

JVM stacktrace:
\tat org.apache.spark.Task.run(Task.scala:1)
"""

OF_A_PYTHON_THAT_DOES_NOT_START = """An error occurred while calling o86.parquet.
: org.apache.spark.SparkException: Job aborted: Task 0 in stage 0.0 failed 4 times
Error from python worker:
  Traceback (most recent call last):
    File "daemon.py", line 27, in <module>
      import pyarrow
  ModuleNotFoundError: No module named 'pyarrow'
PYTHONPATH was:
  /lib/pyspark.zip
\tat org.apache.spark.Task.run(Task.scala:1)
Caused by: org.apache.spark.SparkException:
Error from python worker:
"""

OF_THE_JVM = """An error occurred while calling o86.parquet.
: java.lang.RuntimeException: cannot write
\tat org.apache.spark.Task.run(Task.scala:1)
Caused by: java.lang.Exception: outer
Caused by: java.io.IOException: No space left on device
"""

WORDS = {
    IN_A_TASK: "An exception was thrown from the Python worker; ZeroDivisionError: division by zero",
    OF_CONNECT: "(org.apache.spark.api.python.PythonException) Thrown from the worker; KeyError: 'a'",
    OF_A_PYTHON_THAT_DOES_NOT_START: "org.apache.spark.SparkException: Job aborted: Task 0 in stage 0.0 failed 4 times;"
    " ModuleNotFoundError: No module named 'pyarrow'",
    OF_THE_JVM: "java.lang.RuntimeException: cannot write; Caused by: java.io.IOException: No space left on device",
    "[TABLE_OR_VIEW_NOT_FOUND] The table `a` cannot be found.": "[TABLE_OR_VIEW_NOT_FOUND] The table `a` cannot be"
    " found.",
    "": "Exception('')",
}


@pytest.mark.parametrize(("text", "words"), WORDS.items())
def test_the_line_that_says_what_is_wrong_is_among_the_words(text: str, words: str) -> None:
    assert words_of(Exception(text)) == words
    assert translated(Exception(text)) is None


def test_a_module_whose_name_begins_as_ours_is_not_taken_for_ours() -> None:
    missing = IN_A_TASK.replace("ZeroDivisionError: division by zero", "ModuleNotFoundError: No module named '{}'")

    assert translated(Exception(missing.format("pipelines"))) is None
    assert "have no celeriac" in str(translated(Exception(missing.format("pipeline"))))
