"""Counts the words of all text files in a folder.

    celeriac run examples/wordcount.py

Reads examples/data/words/*.txt, or the folder that WORDS names; writes out/words/part-*.jsonl.
"""

import os
import re
from pathlib import Path

from pipeline import Pipeline, count, read, write

folder = os.environ.get("WORDS", str(Path(__file__).parent / "data" / "words"))

flow = Pipeline("wordcount")
(
    flow.source(read.text(folder), name="lines")
    .flat_map(lambda line: re.findall(r"\w+", line.lower()), name="words")
    .key_by(lambda word: word, name="by_word")
    .aggregate(count=count(), name="running_count")
    .last(name="final_count")
    .sink(write.jsonl("out/words"), name="table")
)
