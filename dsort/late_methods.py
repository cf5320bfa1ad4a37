"""Compiles the methods of dataclasses when they are first called.

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

LATE = frozenset({"annotated_types", "dsort", "pydantic", "typer"})
"""The packages whose dataclasses are made so: dsort, and what it describes specs and options by."""

FIRST_CALLS = 8
"""Calls of ``__init__`` that are done without compiling it. A process of a small job makes objects
of 80 classes, of most of them fewer; to compile each takes as long as twenty such calls."""


def load_quickly() -> None:
    """What a process of dsort's own does before it loads the rest of dsort."""
    gc.set_threshold(COLLECTED_AFTER, *gc.get_threshold()[1:])
    compile_methods_late()


def compile_methods_late() -> None:
    """Have the methods of dataclasses that are defined from here on compiled when they are first
    called, in the packages of ``LATE``."""
    import dataclasses  # which takes a while: Ctrl-C is heard by then

    create = getattr(dataclasses, _INSIDE, None)
    if create is not None and create.__module__ == dataclasses.__name__:
        setattr(dataclasses, _INSIDE, _late(create))


def _late(create: Callable[..., Any]) -> Callable[..., Any]:
    def create_later(name: str, *text: Any, **given: Any) -> Any:
        module = str(given.get("globals", {}).get("__name__", ""))
        if module.partition(".")[0] not in LATE:
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

        calls = 0

        def first_inits(self: Any, /, *args: Any, **given: Any) -> None:
            nonlocal calls
            calls += 1
            owners = [each for each in type(self).__mro__ if each.__dict__.get(name) is method]
            if calls <= FIRST_CALLS and owners and _set_fields(owners[0], self, args, given):
                return
            # Objects are made by the thousand: from the next one on, nothing is in between.
            for owner in owners:
                setattr(owner, name, make())
            make()(self, *args, **given)

        method: Any = first_inits if name == "__init__" else later
        method.__name__ = name
        return method

    return create_later


def _set_fields(owner: Any, self: Any, args: tuple[Any, ...], given: dict[str, Any]) -> bool:
    """Do what ``__init__`` of the dataclass ``owner`` does. False, and nothing done, if it is not
    so simple, or if it would refuse the arguments."""
    from dataclasses import MISSING, fields

    known = fields(owner)
    places = [each.name for each in known if not each.kw_only]
    are_plain = len(known) == len(owner.__dataclass_fields__) and all(each.init for each in known)
    if not are_plain or len(args) > len(places) or not given.keys().isdisjoint(places[: len(args)]):
        return False
    values = {**dict(zip(places, args, strict=False)), **given}
    for each in known:
        if each.name in values:
            continue
        if each.default is not MISSING:
            values[each.name] = each.default
        elif each.default_factory is not MISSING:
            values[each.name] = each.default_factory()
        else:
            return False
    if len(values) > len(known):
        return False
    set_field = object.__setattr__ if owner.__dataclass_params__.frozen else setattr
    for each in known:
        set_field(self, each.name, values[each.name])
    if hasattr(owner, "__post_init__"):
        self.__post_init__()
    return True
