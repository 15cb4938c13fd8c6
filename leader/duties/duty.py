"""What a duty of the leader is. The round owns time and the lease; a duty judges one job's facts and acts on them."""

from __future__ import annotations

from typing import Protocol

from pipeline.facts import JobFacts


class Duty(Protocol):
    """One duty for one job, for as long as its leader leads. What it remembers is a hint: the next leader has none."""

    @property
    def name(self) -> str: ...

    def run_once(self, facts: JobFacts, token: str) -> dict[str, int]:
        """Does what is due under the lease `token`; what was done -> how often, empty for nothing.

        Raises StaleTerm when another leader has taken over, StoreError.
        """
        ...
