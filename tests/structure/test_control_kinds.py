"""Every control message that a script writes is one that its readers know."""

from __future__ import annotations

import re
from importlib.resources import files

from pipeline.control import read_control

FIELDS = {b"state": b"running", b"partition": b"0.1", b"worker": b"w0", b"term": b"1", b"table": b"2"}


def test_readers_know_all_kinds_that_scripts_write() -> None:
    scripts = [path for path in files("pipeline.store").joinpath("scripts").iterdir() if path.name.endswith(".lua")]
    kinds = {kind for path in scripts for kind in re.findall(r"'kind', '(\w+)'", path.read_text())}

    assert {"Created", "State", "Pause"} <= kinds
    for kind in kinds:
        read_control({b"kind": kind.encode(), **FIELDS})
