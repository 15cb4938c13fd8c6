"""JDBC addresses and the properties that go with them: shown, and looked up, without what is secret in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pipeline.errors import InputError
from pipeline.graph import SourceSpec
from pipeline.sinks.secrets import is_variable, value_of

URL: Final = " url"
"""Under which name the secrets of a source have its address; no property is called so."""

_ADDRESS: Final = re.compile(r"jdbc:([A-Za-z0-9+.-]+):(.*)", re.DOTALL)
_PARAMETERS: Final = re.compile(r"[?;(]")
_SECRET_NAME: Final = re.compile(r"(?i)pass|pwd|secret|token|key|auth|sig|cred")
_PARAMETER: Final = re.compile(r"([^?&;,()=]+)=([^?&;,()]*)")


def is_jdbc(url: str) -> bool:
    return _ADDRESS.fullmatch(url) is not None


def shown_url(url: str) -> str:
    """The address without users, passwords and parameters. The name of a variable is itself."""
    if is_variable(url):
        return url
    found = _ADDRESS.fullmatch(url)
    if found is None:
        return "an address that is none of JDBC"
    rest, *parameters = _PARAMETERS.split(found[2], maxsplit=1)
    if parameters and "@" in parameters[0]:
        return f"jdbc:{found[1]}:***"  # a password may hold a sign that begins parameters
    # A password may hold an @: the last one ends it. Oracle has user/password@//host, others //user:password@host.
    user, at, host = rest.rpartition("@")
    slashes = "//" if at and user.startswith("//") else ""
    return f"jdbc:{found[1]}:{slashes}{host}"


@dataclass(frozen=True, slots=True)
class JdbcAddress:
    """The address and the properties of a source, as the driver gets them."""

    url: str = field(repr=False)
    properties: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, spec: SourceSpec) -> JdbcAddress:
        """Raises EnvironmentFault for a variable that is not set, InputError for one that holds no address."""
        found = {name: value_of(value, _what(name)) for name, value in spec.secrets.items()}
        url = found.pop(URL)
        if not is_jdbc(url):
            raise InputError(
                f"read.jdbc: what {spec.secrets[URL]} holds is no address of JDBC",
                hint='it begins with jdbc:, as "jdbc:postgresql://host/shop"',
            )
        return cls(url, found)

    @property
    def shown(self) -> str:
        return shown_url(self.url)

    def without_secrets(self, text: str) -> str:
        """What a driver says, with `***` for what is secret, should it repeat that."""
        text = text.replace(self.url, self.shown)
        for secret in sorted(self._secrets(), key=len, reverse=True):
            text = text.replace(secret, "***")
        return text

    def _secrets(self) -> set[str]:
        found = {value for name, value in self.properties.items() if _SECRET_NAME.search(name)}
        found |= {value for name, value in _PARAMETER.findall(self.url) if _SECRET_NAME.search(name)}
        user, at, _ = self.url.rpartition("@")
        if at:
            found.add(re.split(r"[:/]", user)[-1])
        return found - {""}


def _what(name: str) -> str:
    return "the address of read.jdbc" if name == URL else f"the property {name!r} of read.jdbc"
