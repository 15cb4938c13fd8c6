"""The errors that a caller can do something about. Nothing else is raised across a package border."""

from __future__ import annotations


class CeleriacError(Exception):
    """Root of all errors of this project. `hint` says what an operator can do about it, or is empty."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class PipelineError(CeleriacError):
    """Raised when a pipeline is wrong: a bad graph, a bad argument, a file that cannot be loaded."""


class EncodingError(CeleriacError):
    """Raised when a value or key cannot be encoded. `index` is its place in the batch, or -1."""

    def __init__(self, message: str, index: int = -1, hint: str = "") -> None:
        super().__init__(message, hint)
        self.index = index


class DecodingError(CeleriacError):
    """Raised when stored or received bytes are not what the protocol says."""


class InputError(CeleriacError):
    """Raised when a source cannot be read: a missing file, a folder without files, a bad header."""


class SourceAway(CeleriacError):
    """Raised when what a source reads from does not answer, or is not there, just now. Worth a retry, after a pause."""


class ProducerError(CeleriacError):
    """Raised when a producer is used wrongly: a bad argument, a source that takes no records, sending after its end."""


class ReadingError(CeleriacError):
    """Raised when results or state are asked for wrongly: no such sink, stage or key, a position that is not kept."""


class RowRejected(EncodingError):
    """Raised when the place that a sink writes to refuses a record for what it holds. Not worth a retry."""


class RecordFailed(CeleriacError):
    """Raised when a record fails for good, and the policy of its stage is that the job then fails."""


class SinkError(CeleriacError):
    """Raised when a sink cannot be written or published."""


class SinkAway(SinkError):
    """Raised when the place that a sink writes to does not answer just now. Worth a retry, after `wait_seconds`."""

    def __init__(self, message: str, hint: str = "", wait_seconds: float = 0.0) -> None:
        super().__init__(message, hint)
        self.wait_seconds = wait_seconds


class SinkAhead(SinkError):
    """Raised when the place that a sink writes to holds what was committed, and Redis does not know any more.

    `records`: how many, where that can be told.
    """

    def __init__(self, message: str, records: int | None = None) -> None:
        super().__init__(message)
        self.records = records


class EnvironmentFault(CeleriacError):
    """Raised when something this machine must have is missing: a Redis server, Java, an extra."""


class DirectoryInUse(EnvironmentFault):
    """Raised when another server of ours is running over the directory."""


class ProgramError(CeleriacError):
    """Raised when an external program ends, hangs, refuses a record, or answers what its protocol does not have."""


class FrameError(CeleriacError):
    """Raised when the function of a DataFrame operator fails in Spark, or does not return a frame of records."""


class LetterError(CeleriacError):
    """Raised when a dead letter is not there, or what was asked cannot be done with it."""


class SavepointError(CeleriacError):
    """Raised when a savepoint cannot be taken, read or restored; where a row of it is wrong, that row is named."""


class SavepointLost(SavepointError):
    """Raised when a savepoint is given up while it is written. The job goes on. Worth another try."""


class StoreError(CeleriacError):
    """Root of the errors of the store."""


class StoreUnavailable(StoreError):
    """Raised when Redis cannot be reached or does not answer in time. Worth a retry."""


class StoreRestarted(StoreUnavailable):
    """Raised when another run of the server answers than before: the call was not made. Worth a retry.

    Whoever remembers something of the run before compares it first.
    """


class TailLost(StoreError):
    """Raised when Redis has come back without writes that it had acknowledged. The job has halted."""


class JobRestored(StoreError):
    """Raised when the job goes on under a new generation, behind an accepted loss: this sender or reader must not.

    acknowledged: the records that this sender had been told were taken. survived: those of them that the job still
    has, always the first ones. None where it is not about a sender.
    """

    def __init__(
        self, message: str, hint: str = "", acknowledged: int | None = None, survived: int | None = None
    ) -> None:
        super().__init__(message, hint)
        self.acknowledged = acknowledged
        self.survived = survived


class StoreFull(StoreError):
    """Raised when Redis has no memory left for an append. Worth a retry, after a pause."""


class UnsuitableServer(StoreError):
    """Raised when the server is too old, evicts keys, is read-only, or refuses us. Not worth a retry."""


class ForeignData(StoreError):
    """Raised when a key of ours holds something that we did not write. Not worth a retry."""


class UnknownJob(StoreError):
    """Raised when no job of that id is registered."""


class JobStateError(StoreError):
    """Raised when the job's state does not allow what was asked."""


class JobTaken(JobStateError):
    """Raised when another run has the job by now: it is that run's, and is left as it is."""


class Busy(JobStateError):
    """Raised when a lifecycle operation, or a savepoint, of the job is under way: one at a time."""


class OperationLost(JobStateError):
    """Raised when a command that carries out an operation was taken for gone: it must not go on. The job goes on."""


class ShadowLost(StoreError):
    """Raised when a shadow cannot go on: its input, or results to compare it with, are not kept. The job goes on."""


class NotQuiet(JobStateError):
    """Raised when a job was to be ended with nothing in flight, and something is."""


class UnknownSender(StoreError):
    """Raised when a sender was never registered, or is forgotten. It is never re-created silently."""


class StaleSender(StoreError):
    """Raised when a newer instance of this sender has registered: this one must stop."""


class StaleReader(StoreError):
    """Raised when a reader was removed, has expired, or was moved by another process of its name."""


class InboxClosed(StoreError):
    """Raised when the source has ended and a new number is appended."""


class InboxFull(StoreError):
    """Raised when an inbox stayed full longer than the caller wanted to wait."""


class SourcePaused(InboxFull):
    """Raised when the source was held back by `celeriac pause` for longer than the caller wanted to wait."""


class StaleTerm(StoreError):
    """Raised when a leader writes under a lease that is no longer its own."""
