"""Who may see the pages: everybody on this machine, or whoever knows a password."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from pipeline.errors import EnvironmentFault

_CREDENTIAL = re.compile(r"[!-9;-~]+:[ -~]+\Z")  # printable ASCII, no colon in the name: what basic auth carries safely


@dataclass(frozen=True, slots=True)
class Access:
    """The address to listen on, and the `user:password` pairs that open the pages.

    Without any, only a loopback address is possible. Raises EnvironmentFault otherwise.
    """

    address: str
    port: int
    credentials: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if not self.credentials and not is_loopback(self.address):
            raise EnvironmentFault(
                f"{self.address!r} is not a loopback address, and no password is set",
                hint="put user:password into CELERIAC_FLOWER_AUTH or a --basic-auth-file, or use --address 127.0.0.1",
            )

    def admits_host(self, host: str) -> bool:
        """Whether a request with this Host header is answered.

        Without passwords only names of this machine are: a foreign page whose name was made to point to 127.0.0.1
        (DNS rebinding) would otherwise read ours in its visitor's browser.
        """
        return bool(self.credentials) or is_loopback(_name(host))


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach the address. A name other than localhost may point anywhere."""
    if address.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def read_credentials(file: Path | None, variable: str) -> tuple[str, ...]:
    """What the file holds, or else the value of the variable; nothing where neither is given.

    Raises EnvironmentFault for a file that cannot be read, holds no password, or something else.
    """
    if file is None:
        return parse_credentials(variable, "CELERIAC_FLOWER_AUTH") if variable else ()
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise EnvironmentFault(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise EnvironmentFault(f"{file} is not text", hint="write one user:password a line") from error
    return parse_credentials(text, str(file))


def parse_credentials(text: str, origin: str) -> tuple[str, ...]:
    """One `user:password` a line; empty lines and lines that begin with # do not count.

    Raises EnvironmentFault that names the line, never its content, and when there is none. `origin` says where
    the text is from.
    """
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        if not _CREDENTIAL.match(stripped):
            raise EnvironmentFault(
                f"line {number} of {origin} is not user:password", hint="use printable ASCII, and no colon in the user"
            )
        found.append(stripped)
    if not found:
        raise EnvironmentFault(f"{origin} holds no password", hint="write one user:password a line")
    return tuple(found)


def _name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
