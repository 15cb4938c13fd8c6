"""The error that names the operator whose code failed. What follows from it is decided by the carriers."""

from __future__ import annotations

from pipeline.errors import CeleriacError


class OperatorError(CeleriacError):
    """Raised when the code of one operator fails; `cause` is the exception that it raised.

    The state that was passed to the step may be half changed: drop it and load it again.
    """

    def __init__(self, operator: str, cause: BaseException) -> None:
        hint = cause.hint if isinstance(cause, CeleriacError) else ""
        super().__init__(
            f"the operator {operator!r} failed: {describe(cause)}",
            hint or "correct its function, or filter out the records that it cannot take",
        )
        self.operator = operator
        self.cause = cause


def describe(error: BaseException) -> str:
    """`Type: message` of any exception, the type alone where it has no message; always valid Unicode."""
    try:
        message = str(error)
    except Exception:  # the user's own __str__
        message = "(its message cannot be shown)"
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return text.encode("utf-8", "backslashreplace").decode()


def is_of_user_code(error: BaseException) -> bool:
    """Whether it is the failure of a function. `sys.exit()` is one; a Ctrl-C, or an order to end the worker, is not."""
    return isinstance(error, Exception) or type(error) is SystemExit
