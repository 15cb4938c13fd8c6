"""`python -m pipeline.spark.cluster CLASS ARGUMENT…`: becomes a process of a Spark cluster, for our image.

Finds Java and PySpark's launcher, and replaces itself by it; so signals and exit code are those of the JVM.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from pipeline.embedded.java import ensure_java
from pipeline.errors import EnvironmentFault

_NOT_STARTED = 3


def launcher(environment: Mapping[str, str]) -> tuple[Path, dict[str, str]]:
    """Spark's launcher and the variables that it needs. Raises EnvironmentFault without PySpark or Java."""
    # Not imported: only its folder is wanted.
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise EnvironmentFault("Spark is not installed", hint="pip install 'celeriac[spark]'")
    home = Path(spec.origin).parent
    java = str(ensure_java(environment=environment))
    own = {"SPARK_HOME": str(home), "JAVA_HOME": java, "PYSPARK_PYTHON": sys.executable}
    return home / "bin" / "spark-class", {**environment, **own}


def become(arguments: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replaces this process by Spark's class of that name. Raises EnvironmentFault."""
    program, variables = launcher(environment)
    # By bash: the wheel does not promise that its scripts may be executed.
    os.execvpe("bash", ["bash", str(program), *arguments], variables)


def main() -> int:
    """Only returns, with 3, when Spark cannot be started."""
    try:
        become(sys.argv[1:], os.environ)
    except EnvironmentFault as error:
        print(f"error: {error}" + (f"\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
        return _NOT_STARTED


if __name__ == "__main__":
    sys.exit(main())
