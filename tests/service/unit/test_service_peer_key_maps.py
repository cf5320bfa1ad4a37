"""Key maps that AIStore's SDK puts beside the inputs: held for the start that follows, for whoever
put them, within limits; and only URLs of the service itself mean one."""

from __future__ import annotations

import pytest

from dsort.errors import SpecError
from dsort.service.aistore.key_maps import HeldKeyMaps, with_key_map
from tests.support.fake_clock import FakeClock

HERE = "dsort.example:8080"
URL = f"http://{HERE}/v1/objects/in/ekm-file.json?provider=ais"
MAP = b'{"low-%d.tar": ["^0"], "high-%d.tar": ["^1"]}'


def spec(url: str = URL) -> dict[str, object]:
    """What the SDK sends for a key map."""
    return {"input_bck": {"name": "in"}, "output_format": "", "ekm_file": url, "ekm_file_sep": ""}


def test_the_key_map_that_was_put_becomes_the_specs_own() -> None:
    held = HeldKeyMaps()
    held.put("ann", "in", MAP)
    assert with_key_map(spec(), held, owner="ann", address=HERE) == {
        "input_bck": {"name": "in"},
        "output_format": "",
        "ekm": {"low-%d.tar": ["^0"], "high-%d.tar": ["^1"]},
    }


@pytest.mark.parametrize(
    "url",
    [
        "http://other.example/v1/objects/in/ekm-file.json",
        f"http://{HERE}/v1/objects/in/other.json",
        f"http://{HERE}/v1/sort",
        "/v1/objects/in/ekm-file.json",
    ],
)
def test_other_places_stay_as_they_are(url: str) -> None:
    held = HeldKeyMaps()
    held.put("ann", "in", MAP)
    assert with_key_map(spec(url), held, owner="ann", address=HERE) == spec(url)


@pytest.mark.parametrize(("owner", "bucket"), [("bob", "in"), ("ann", "else")])
def test_nobody_gets_a_key_map_that_is_not_theirs(owner: str, bucket: str) -> None:
    held = HeldKeyMaps()
    held.put(owner, bucket, MAP)
    with pytest.raises(SpecError, match="no key map was put into in lately"):
        with_key_map(spec(), held, owner="ann", address=HERE)


@pytest.mark.parametrize("data", [b"key\tshard-%d", b"\xff", b'{"a": [], "a": []}', b"[" * 99_999])
def test_what_is_no_json_is_refused(data: bytes) -> None:
    held = HeldKeyMaps()
    held.put("ann", "in", data)
    with pytest.raises(SpecError):
        with_key_map(spec(), held, owner="ann", address=HERE)


def test_key_maps_are_held_for_ten_minutes() -> None:
    clock = FakeClock()
    held = HeldKeyMaps(clock.now)
    held.put("ann", "in", MAP)
    clock.seconds += 600
    assert held.get("ann", "in") == MAP
    clock.seconds += 1
    assert held.get("ann", "in") is None


def test_the_oldest_key_maps_go_where_they_are_too_many_or_too_large() -> None:
    held = HeldKeyMaps()
    for number in range(65):
        held.put("ann", f"in-{number}", MAP)
    assert held.get("ann", "in-0") is None
    assert held.get("ann", "in-1") == MAP
    held.put("ann", "large", b"x" * (16 << 20))
    assert [held.get("ann", f"in-{number}") for number in range(65)] == [None] * 65
    assert held.get("ann", "large") is not None


def test_a_key_map_that_is_put_again_replaces_the_first() -> None:
    held = HeldKeyMaps()
    held.put("ann", "in", b"{}")
    held.put("ann", "in", MAP)
    assert held.get("ann", "in") == MAP
