"""The files and buckets that a spec names are found by the types of its fields, and all that opens
a text of a spec takes that type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NotRequired, get_args, get_origin

import pytest
import typing_extensions
from pydantic import BaseModel, Field, create_model
from pydantic.fields import FieldInfo
from typing_extensions import TypedDict, is_typeddict

from dsort.errors import ForbiddenError, InputError
from dsort.loose_files import gather
from dsort.service.config import SpecPolicy
from dsort.service.security.guard import check_spec
from dsort.spec.fields import Bucket, located
from dsort.spec.load import parse_spec
from dsort.spec.model import JobSpec
from dsort.spec.part import Late
from dsort.storage.ref import BucketRef
from dsort.transforms.base import ReadText, Step
from dsort.transforms.steps import STEPS
from tests.support.internals import FileLocation, new_job, read_text
from tests.support.refusals import raises

PLAIN = {"input_bck": "in", "output_bck": "out", "output_format": "x-%d", "output_shard_size": 1}


class Options(TypedDict):
    here: NotRequired[list[FileLocation]]
    other: str


class Part(BaseModel):
    plain: FileLocation
    or_none: FileLocation | None = None
    limited: Annotated[FileLocation, Field(max_length=99)] | None = None
    several: Sequence[FileLocation] = ()
    unordered: frozenset[FileLocation] = frozenset()
    pair: tuple[int, FileLocation] = (0, FileLocation("in a pair"))
    any_length: tuple[FileLocation, ...] = ()
    by_name: Mapping[str, FileLocation | int] = Field(default_factory=dict)
    by_file: Mapping[FileLocation, str] = Field(default_factory=dict)
    union: FileLocation | list[FileLocation] | Mapping[str, Options] = FileLocation("u")
    options: Options | None = None
    text: str = "no location"


class Whole(BaseModel):
    part: Part
    parts: list[Part] = Field(default_factory=list)


def test_a_location_is_found_wherever_its_type_stands() -> None:
    whole = Whole(
        part=Part(
            plain=FileLocation("a"),
            limited=FileLocation("b"),
            several=[FileLocation("c"), FileLocation("d")],
            any_length=(FileLocation("e"),),
            unordered=frozenset([FileLocation("l")]),
            by_name={"x": FileLocation("f"), "y": 3},
            by_file={FileLocation("g"): "no location"},
            union={"z": {"here": [FileLocation("h")], "other": "no location"}},
            options={"here": [FileLocation("i")], "other": "no location"},
        ),
        parts=[Part(plain=FileLocation("j"), union=[FileLocation("k")])],
    )
    assert dict(located(whole)) == {
        "part.plain": "a",
        "part.limited": "b",
        "part.several[0]": "c",
        "part.several[1]": "d",
        "part.pair[1]": "in a pair",
        "part.any_length[0]": "e",
        "part.unordered[0]": "l",
        "part.by_name.x": "f",
        "part.by_file": "g",
        "part.union.z.here[0]": "h",
        "part.options.here[0]": "i",
        "parts[0].plain": "j",
        "parts[0].pair[1]": "in a pair",
        "parts[0].union[0]": "k",
    }


def test_all_that_a_spec_names_is_found() -> None:
    fields = {
        **PLAIN,
        "outputs": [
            {"name": "a", "fraction": 0.5, "output_bck": "own"},
            {"name": "b", "fraction": 0.5},
        ],
        "output_format": "{split}-%d",
        "ingest": {"layout": "folders", "class_map": "m", "table": {"file": "t"}},
        "transform": {"steps": [{"keep_keys": {"file": "k"}}, {"drop_keys": {"keys": ["d"]}}]},
    }
    assert set(located(parse_spec(fields).spec)) == {
        ("input_bck", BucketRef("", "in")),
        ("output_bck", BucketRef("", "out")),
        ("outputs[0].output_bck", BucketRef("", "own")),
        ("ingest.class_map", "m"),
        ("ingest.table.file", "t"),
        ("transform.steps[0].keep_keys.file", "k"),
    }


# --- a field that is added -----------------------------------------------------------------------


def with_field(kind: Any, value: object) -> JobSpec:
    """A spec that has one more field, as if the model had it."""
    grown = create_model("GrownSpec", __base__=JobSpec, added=(kind, ...))
    return grown.model_validate({**PLAIN, "added": value})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for each in ("root/in", "root/out", "root/more", "secret"):
        (tmp_path / each).mkdir(parents=True)
    return tmp_path / "root"


def test_a_file_of_a_field_that_is_added_is_held_against_the_policy(root: Path) -> None:
    policy = SpecPolicy(root=root)
    for kind, wrapped in (
        (FileLocation, lambda text: text),
        (Annotated[FileLocation, Field(max_length=999)] | None, lambda text: text),
        (list[Options], lambda text: [{"here": [text], "other": ""}]),
        (Whole, lambda text: {"part": {"plain": "in/x", "any_length": (text,)}}),
    ):
        for bad in ("../secret/x", f"FILE://{root}/../secret/x", "s3://bucket/x", "http://h/x"):
            with pytest.raises(ForbiddenError, match="added"):
                check_spec(with_field(kind, wrapped(bad)), policy)
        good = check_spec(with_field(kind, wrapped("more/x")), policy)
        assert f"file://{root}/more/x" in good.file_uris


def test_a_bucket_of_a_field_that_is_added_is_refused(root: Path) -> None:
    """Until it is an input or an output of the job, of which tokens are asked."""
    policy = SpecPolicy(root=root)
    with raises(ForbiddenError, 'added: "more"'):
        check_spec(with_field(Bucket, "more"), policy)
    assert check_spec(with_field(Bucket, "in"), policy).file_uris == ()


# --- fields whose texts are opened ---------------------------------------------------------------


def test_all_that_opens_a_text_of_a_spec_takes_the_type() -> None:
    """mypy refuses what has another type, so the fields have it."""
    for function in (read_text, new_job.named_text):
        assert function.__annotations__["location"] == "FileLocation", function
    assert Step.loaded.__annotations__["read"] == "ReadText"
    assert get_args(ReadText) == ([FileLocation], str)
    assert get_args(gather.Read) == ([FileLocation], bytes)


def text_fields(kind: Any, path: str, seen: frozenset[Any]) -> Iterator[tuple[str, Any, str]]:
    """(path, type, description) of each field of text in a type."""
    if isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in seen:
        for name, field in kind.model_fields.items():
            described = field.description or ""
            yield from _texts(field.annotation, f"{path}.{name}", described, seen | {kind})
    elif is_typeddict(kind) and kind not in seen:
        hints = typing_extensions.get_type_hints(kind, include_extras=True)
        for name, each in hints.items():
            marks = getattr(each, "__metadata__", None) or each.__args__[0].__metadata__
            described = next(mark.description for mark in marks if isinstance(mark, FieldInfo))
            yield from _texts(each, f"{path}.{name}", described or "", seen | {kind})


def _texts(kind: Any, path: str, described: str, seen: frozenset[Any]) -> Iterator[Any]:
    if kind in (str, FileLocation):
        yield path, kind, described
    elif get_origin(kind) is Annotated and isinstance(kind.__metadata__[0], Late):
        yield from text_fields(kind.__metadata__[0].model(kind.__origin__), path, seen)
    elif get_origin(kind) is not None:
        for each in get_args(kind):
            yield from _texts(each, path, described, seen)
    else:
        yield from text_fields(kind, path, seen)


def all_text_fields() -> list[tuple[str, Any, str]]:
    found = list(text_fields(JobSpec, "", frozenset()))
    assert len(found) > 60  # else the walk sees little of a spec
    return found


def test_each_field_that_says_it_names_a_file_has_the_type() -> None:
    found = {path: kind for path, kind, text in all_text_fields() if "relative to the spec" in text}
    assert {path for path, kind in found.items() if kind is FileLocation} == set(found)
    located_too = {path for path, kind, _ in all_text_fields() if kind is FileLocation}
    assert located_too == {
        ".ekm_file",
        ".ingest.class_map",
        ".ingest.labels",
        ".ingest.recipe",
        ".ingest.table.file",
        ".transform.steps.keep_keys.file",
        ".transform.steps.drop_keys.file",
    }


def test_each_step_that_reads_what_its_options_name_does_so_by_the_type() -> None:
    reading = {kind for kind, step in STEPS.items() if step.loaded is not Step.loaded}
    files = [path for path, kind, _ in all_text_fields() if kind is FileLocation]
    fields = {part for path in files for part in path.split(".")}
    assert reading <= fields


def test_a_job_reads_no_text_that_was_not_found_in_its_spec(root: Path) -> None:
    """Whatever names it: the policy of a job lists its files."""
    (root / "in" / "mine").write_text("mine")
    (root / "in" / "theirs").write_text("theirs")
    service = SpecPolicy(root=root).fetch_policy()
    policy = service.of_job([f"{root}/in"], [f"{root}/out"], [f"{root}/in/mine"])
    assert read_text(FileLocation("in/mine"), policy=policy) == "mine"
    for other in ("in/theirs", f"file://{root}/in/theirs", "/etc/hostname"):
        with pytest.raises(InputError, match=Path(other).name):
            read_text(FileLocation(other), policy=policy)
