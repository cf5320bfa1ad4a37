"""Dataclasses whose methods are compiled late are as those of the standard library."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import sys
from types import ModuleType
from typing import Any

import pytest

from dsort.late_methods import FIRST_CALLS, compile_methods_late

SOURCE = """
from __future__ import annotations
from dataclasses import KW_ONLY, InitVar, dataclass, field

@dataclass(frozen=True, slots=True)
class Place:
    "Where."
    name: str
    sizes: list[int] = field(default_factory=list)
    note: str = field(default="", compare=False, repr=False)

@dataclass(frozen=True, slots=True)
class Far(Place):
    "Far away."
    _: KW_ONLY
    miles: int = 7

@dataclass(slots=True)
class Count:
    "A count."
    start: InitVar[int]
    value: int = field(init=False)
    def __post_init__(self, start: int) -> None:
        self.value = start + 1
    def made_again(self) -> Count:
        return Count(self.value)

@dataclass
class Checked:
    "A number that may not be below 0."
    value: int = 2
    def __setattr__(self, name: str, value: int) -> None:
        object.__setattr__(self, name, value + 1)
    def __post_init__(self) -> None:
        if self.value < 1:
            raise TypeError("below 0")

@dataclass(order=True, unsafe_hash=True)
class Size(Count):
    "A size."
    unit: str = "B"
    def __init__(self, start: int) -> None:
        super().__init__(start)
"""

LATE = "dsort.made_late"
CASES = [
    "Place('a')",
    "Place('a', note='b') == Place('a')",
    "Place('a') == Place('b')",
    "Place('a') == 3",
    "Far('a', [1], miles=2)",
    "Far('a') == Place('a')",
    "Far('a').sizes is Far('a').sizes",
    "Far('a', [], 'n', 2)",
    "hash(Far('a', ())) == hash(Far('a', ()))",
    "hash(Place('a'))",
    "Place()",
    "Place('a', name='b')",
    "Place('a', [], '', 4)",
    "Far('a', [], '', 4)",
    "Count(3, value=4)",
    "Checked(3).value, Checked().value",
    "Checked(-1)",
    "Place('a', wrong=1)",
    "setattr(Place('a'), 'name', 'b')",
    "delattr(Far('a'), 'miles')",
    "Count(3).made_again()",
    "Count(3) == Count(4)",
    "hash(Count(3))",
    "Size(3) < Size(4), Size(3).unit",
    "replace(Far('a'), miles=3, name='b')",
    "asdict(Far('a')), [each.name for each in fields(Far)]",
    "loads(dumps([Place('a', [1]), Far('b', miles=9), Count(2)]))",
    "[type(each)(each.name) for each in (Place('a'), Far('b'), Place('c'), Far('d'))]",
]


def module_of(name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    made = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, made)
    exec(compile(SOURCE, name, "exec", dont_inherit=True), made.__dict__)
    tools = {"loads": pickle.loads, "dumps": pickle.dumps}
    made.__dict__.update(
        tools, asdict=dataclasses.asdict, fields=dataclasses.fields, replace=dataclasses.replace
    )
    return made.__dict__


def outcome(expression: str, names: dict[str, Any]) -> str:
    try:
        return repr(eval(expression, names))
    except (AttributeError, TypeError) as error:
        return f"{type(error).__name__}: {error}"


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    create = getattr(dataclasses, "_create_fn", None)
    if create is None:
        pytest.skip("this Python compiles the methods of a class at once")
    monkeypatch.setattr(dataclasses, "_create_fn", create)  # to have it put back
    compile_methods_late()
    return module_of(LATE, monkeypatch)


def test_they_do_what_they_would_do(late: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = module_of("made_at_once", monkeypatch)
    for case in CASES:
        # The first calls are done without a compiled method, one is the one that compiles.
        for _ in range(FIRST_CALLS + 2):
            assert outcome(case, late) == outcome(case, plain), case


def test_they_are_compiled_after_some_calls(late: dict[str, Any]) -> None:
    far = late["Far"]
    before = far.__init__
    assert list(inspect.signature(before).parameters)[1:] == ["args", "given"]
    for _ in range(FIRST_CALLS):
        far("a")
        assert far.__init__ is before
    far("a")
    assert list(inspect.signature(far).parameters) == ["name", "sizes", "note", "miles"]
    assert far.__init__.__qualname__ == "Far.__init__"
    assert list(inspect.signature(late["Place"].__init__).parameters)[1:] == ["args", "given"]


def test_other_modules_have_theirs_compiled_at_once(
    late: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = module_of("somebody_else", monkeypatch)
    assert list(inspect.signature(other["Far"]).parameters) == ["name", "sizes", "note", "miles"]


def test_they_are_made_late_once(late: dict[str, Any]) -> None:
    before = dataclasses.__dict__["_create_fn"]
    compile_methods_late()
    assert dataclasses.__dict__["_create_fn"] is before
