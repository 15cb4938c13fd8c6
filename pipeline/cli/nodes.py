"""What a node process is told when it starts: one JSON object on its standard input. Starts nothing."""

from __future__ import annotations

import msgspec

from pipeline.errors import DecodingError


class NodeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The processes that a node keeps for one job.

    redis: the address, with its password, which is why this travels on no command line.
    target: the pipeline, `path/to/file.py[:name]`; the node runs in the folder that it counts from.
    sources: names of the sources to feed. endless: those of them that are followed for as long as the job runs.
    reader: auto, local or spark; empty for what each source says itself.
    logs, temporary: folders for one log file a process, and for its temporary files.
    stop_seconds: how long processes have to end after SIGTERM.
    node: its name; empty for that of the host.
    spark: where a streaming query of Spark runs that is the one worker, as a master; empty for this host, None for
        workers of Celery. spark_interval_seconds: between the beginnings of its batches.
    is_scaled: whether `workers` is only how many there are at first, and Redis says how many are wanted.
    pools: pool -> its workers, for pools other than `main`, whose workers are `workers`. scaled_pools: those of them of
        which Redis says how many are wanted.
    bursts: the master of Spark for the bursts that the autoscaler decides, empty for this host; None to begin none.
    has_leader: whether it leads the job, which one that only feeds it does not.
    """

    redis: str
    job: str
    target: str
    workers: int
    sources: tuple[str, ...]
    reader: str
    logs: str
    temporary: str
    stop_seconds: float = 3.0
    endless: tuple[str, ...] = ()
    is_scaled: bool = False
    node: str = ""
    pools: dict[str, int] = {}
    scaled_pools: tuple[str, ...] = ()
    bursts: str | None = None
    has_leader: bool = True
    spark: str | None = None
    spark_interval_seconds: float = 0.0

    def __repr__(self) -> str:
        return f"NodeSettings(job={self.job!r}, workers={self.workers}, sources={self.sources!r})"

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> NodeSettings:
        """Raises DecodingError."""
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise DecodingError(f"the settings of the node cannot be read: {error}") from error
