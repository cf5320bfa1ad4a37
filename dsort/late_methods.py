"""Methods of dsort's dataclasses that are compiled when they are first called.

``dataclasses`` writes the text of up to six methods for each class and compiles it: a third of what
a small job's command takes, of which it calls few. Only for processes of dsort's own: a user's
process keeps the standard library as it is.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

__all__ = ["compile_methods_late", "load_quickly"]

COLLECTED_AFTER = 200_000
"""Objects. What is loaded is no garbage: to look for some after each 700 is 5 % of a small job."""

_INSIDE = "_create_fn"
"""What makes a method of its text, up to Python 3.12. Where it is not there, nothing is changed."""


def load_quickly() -> None:
    """What a process of dsort's own does before it loads the rest of dsort."""
    gc.set_threshold(COLLECTED_AFTER, *gc.get_threshold()[1:])
    compile_methods_late()


def compile_methods_late() -> None:
    """Have the dataclasses that dsort defines from here on made so."""
    import dataclasses  # which takes a while: Ctrl-C is heard by then

    create = getattr(dataclasses, _INSIDE, None)
    if create is not None and create.__module__ == dataclasses.__name__:
        setattr(dataclasses, _INSIDE, _late(create))


def _late(create: Callable[..., Any]) -> Callable[..., Any]:
    def create_later(name: str, *text: Any, **given: Any) -> Any:
        module = str(given.get("globals", {}).get("__name__", ""))
        if not module.startswith("dsort."):
            return create(name, *text, **given)
        made: Any = None

        def make() -> Any:
            nonlocal made
            if made is None:
                made = create(name, *text, **given)
                made.__qualname__ = method.__qualname__
            return made

        def later(self: Any, /, *args: Any) -> Any:
            return make()(self, *args)

        def first_init(self: Any, /, *args: Any, **fields: Any) -> None:
            # Objects are made by the thousand: from the next one on, nothing is in between.
            for each in type(self).__mro__:
                if each.__dict__.get(name) is method:
                    setattr(each, name, make())
            make()(self, *args, **fields)

        method: Any = first_init if name == "__init__" else later
        method.__name__ = name
        return method

    return create_later
