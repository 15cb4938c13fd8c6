"""What the leader of a job remembers from round to round, to judge silence fairly. A new leader remembers nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from leader.duties.balance import is_uneven
from leader.roster import Identity, identity
from pipeline.facts import JobFacts


@dataclass(frozen=True, slots=True)
class Outlook:
    """All times are server milliseconds.

    owned_at_ms: identity -> when it last owned work. stopped: identities that said they end in good order.
    doubtful_until_ms: till then silence proves nothing, since this leader was cut off from Redis itself.
    uneven_since_ms: since when the load is uneven while all partitions are where they are; 0 while it is not.
    seats: who owned what then, by tokens.
    """

    owned_at_ms: Mapping[Identity, int] = field(default_factory=dict)
    stopped: frozenset[Identity] = frozenset()
    last_round_ms: int = 0
    doubtful_until_ms: int = 0
    uneven_since_ms: int = 0
    seats: tuple[str, ...] = ()

    def after(self, facts: JobFacts) -> Outlook:
        """The outlook with one more look at the job."""
        now_ms = facts.now_ms
        lease_ms = int(facts.record.plan.limits.lease_seconds * 1000)
        owners = {(part.owner, part.incarnation) for part in facts.partitions if part.owner and not part.is_through}
        # An identity matters while it owns something or is registered.
        known = owners | {identity(worker) for worker in facts.workers}
        owned_at_ms = {who: at for who, at in self.owned_at_ms.items() if who in known}
        seats = tuple(part.token for part in facts.partitions)
        uneven_since_ms = self.uneven_since_ms if seats == self.seats and self.uneven_since_ms else now_ms
        was_cut_off = self.last_round_ms > 0 and now_ms - self.last_round_ms > lease_ms / 2
        return Outlook(
            owned_at_ms=owned_at_ms | dict.fromkeys(owners, now_ms),
            stopped=frozenset(who for who in self.stopped if who in known)
            | {identity(worker) for worker in facts.workers if worker.is_stopping},
            last_round_ms=now_ms,
            uneven_since_ms=uneven_since_ms if is_uneven(facts) else 0,
            seats=seats,
            doubtful_until_ms=now_ms + lease_ms if was_cut_off else self.doubtful_until_ms,
        )
