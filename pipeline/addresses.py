"""Addresses of what sources read, which may hold passwords: checked without ever being shown."""

from __future__ import annotations

from pipeline.errors import PipelineError
from pipeline.sinks.secrets import is_variable, normal_database
from pipeline.validation import is_unicode


def checked_address(address: object, owner: str, example: str) -> str:
    """The address as it was given, but a relative path of SQLite made absolute. Raises PipelineError."""
    hint = f'for example {example}, or "env:NAME" for what that variable holds'
    if not isinstance(address, str) or not address or not is_unicode(address):
        raise PipelineError(f"{owner}: the address must be text", hint=hint)
    if is_variable(address):
        return address
    if "://" not in address:
        raise PipelineError(f"{owner}: the address has no scheme", hint=hint)
    return normal_database(address, owner) if address.startswith("sqlite://") else address
