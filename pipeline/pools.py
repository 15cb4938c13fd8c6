"""Pools: workers that serve some stages and no others, as those of machines with a GPU.

A worker belongs to one pool, and so does a stage. Most jobs have one pool only, and need no word of it.
"""

from __future__ import annotations

from typing import Final

POOL: Final = "main"
"""The pool of stages, and of workers, that name none."""
