"""Sounds on the page: played from somewhere on, and what the browser asks for meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, Response

__all__ = ["answers_to", "heard"]

_PLAYED = """async (player, from) => {
  const once = (name) => new Promise((tell) => player.addEventListener(name, tell, { once: true }));
  player.muted = true;
  if (player.readyState < 1) await once("loadedmetadata");
  const seeked = once("seeked");
  player.currentTime = from;
  await seeked;
  const ended = once("timeupdate");
  await player.play();
  await ended;
  player.pause();
  return player.currentTime >= from ? player.duration : -1;
}"""


def heard(player: Locator, from_s: float) -> float:
    """How long the sound is, in seconds, once it was played from there on; -1: it was not."""
    return float(player.evaluate(_PLAYED, from_s))


@contextlib.contextmanager
def answers_to(page: Page, path: str) -> Iterator[list[Response]]:
    """What is answered meanwhile to requests whose URLs have ``path`` in them."""
    found: list[Response] = []

    def note(answer: Response) -> None:
        if path in answer.url:
            found.append(answer)

    page.on("response", note)
    try:
        yield found
    finally:
        page.remove_listener("response", note)
