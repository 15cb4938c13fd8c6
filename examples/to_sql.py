"""Counts words into a table of SQLite, which is right at every moment and after any kill -9.

    celeriac run examples/to_sql.py
    sqlite3 words.db 'SELECT * FROM words ORDER BY count DESC LIMIT 10'

Each step's rows and its position are one transaction, so no row is written twice or lost. TO_SQL names another
database, WORDS another folder of text files.
"""

import os
import re
from pathlib import Path

from pipeline import Pipeline, count, read, write

folder = os.environ.get("WORDS", str(Path(__file__).parent / "data" / "words"))
database = os.environ.get("TO_SQL", f"sqlite:///{Path.cwd() / 'words.db'}")

flow = Pipeline("to_sql")
(
    flow.source(read.text(folder), name="lines")
    .flat_map(lambda line: [{"word": word} for word in re.findall(r"\w+", line.lower())], name="words")
    .key_by("word", name="by_word")
    .aggregate(count=count(), name="running_count")
    .sink(write.sql(database, "words", key="word", mode="upsert", create=True), name="table")
)
