"""Texts with which no list, page or stream may fail: half characters, controls, NUL, marks of
right-to-left text, texts that look like markup or a format."""

from __future__ import annotations

import random
from collections.abc import Iterator

ODD_TEXTS = (
    "caf\udce9",  # Latin-1, as Python carries it
    "\ud83d",  # the first half of a pair
    "\udc00\ud800",  # two halves the wrong way around
    "a\0b",
    "\x1b[31mred\x07",
    "line\r\nline\u2028line\u0085",
    "\u202eright to left\u200f",
    "\ufeff\ufffe\uffff",
    "e\u0301\u0302" * 20,
    "\U0001f3f3\ufe0f\u200d\U0001f308 \U000e0061",
    "</script><img src=x onerror=alert(1)>",
    "'\"; DROP TABLE jobs; -- %s {0} ${x} {{date}}",
    "\\udce9 \\u0000 \\x00",
    "NaN",
    " \t ",
)


def is_plain(text: str) -> bool:
    """Whether every database and every reader of JSON can hold ``text``."""
    return "\0" not in text and not any("\ud800" <= each <= "\udfff" for each in text)


def odd_texts(rng: random.Random, count: int) -> Iterator[str]:
    """The odd texts, then random texts of the same characters."""
    yield from ODD_TEXTS
    signs = "".join(ODD_TEXTS) + "abc"
    for _ in range(count - len(ODD_TEXTS)):
        yield "".join(
            rng.choice(signs) if rng.random() < 0.8 else chr(rng.randrange(0x110000))
            for _ in range(rng.randint(1, 12))
        )
