"""How messages count things. Pure."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """`1 record`, `2,000 records`; for nouns that only take an s."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
