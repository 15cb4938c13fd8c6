"""Tables of the tests: made and read by statements, beside what is tested."""

from __future__ import annotations

from typing import Any

from sqlalchemy import create_engine, text

from pipeline.errors import StoreUnavailable
from tests.runtime.harness import LocalJob

KEYS = ["a", "b", "c"]


def ask(url: str, statement: str, **values: Any) -> list[tuple[Any, ...]]:
    """What a statement gives, in a transaction of its own."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        result = connection.execute(text(statement), values)
        found = [tuple(row) for row in result] if result.returns_rows else []
    engine.dispose()
    return found


def make_rows(url: str, columns: str = "key TEXT, value INTEGER") -> None:
    ask(url, f"CREATE TABLE rows ({columns})")


def look_again(job: LocalJob) -> None:
    """As Owning does when the table cannot be read."""
    look = job.look

    def again() -> None:
        try:
            look()
        except StoreUnavailable:
            look()

    job.look = again  # type: ignore[method-assign]
