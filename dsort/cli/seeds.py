"""The seed of a verb that shuffles: the given seed, or a random one that is printed."""

from __future__ import annotations

import secrets
from typing import Annotated, Any

from dsort.cli.parameters import Option

__all__ = ["Seed", "shuffle_with"]

SEEDS = 2**32

Seed = Annotated[
    str | None,
    Option(
        "--seed",
        metavar="SEED",
        help="The same seed gives the same order.  [default: a random seed, which is printed]",
    ),
]


def shuffle_with(seed: str | None) -> dict[str, Any]:
    """The ``algorithm`` of a spec that shuffles with ``seed``, or with a random one."""
    return {"kind": "shuffle", "seed": str(secrets.randbelow(SEEDS)) if seed is None else seed}
