"""The error that names the operator whose code failed. What follows from it is decided by the carriers."""

from __future__ import annotations

from pipeline.errors import CeleriacError


class OperatorError(CeleriacError):
    """Raised when the code of one operator fails; `cause` is the exception that it raised.

    The state that was passed to the step may be half changed: drop it and load it again.
    """

    def __init__(self, operator: str, cause: Exception) -> None:
        hint = cause.hint if isinstance(cause, CeleriacError) else ""
        super().__init__(
            f"the operator {operator!r} failed: {type(cause).__name__}: {cause}",
            hint or "correct its function, or filter out the records that it cannot take",
        )
        self.operator = operator
        self.cause = cause
