"""What the registry says of containers without loading them is what they say."""

from __future__ import annotations

import pytest

from dsort.containers import registry
from dsort.containers.registry import (
    SUPPORTED_EXTENSIONS,
    codec_of,
    container_of,
    is_columnar,
    is_supported,
    register,
)
from tests.support.slow_codec import SlowCodec
from tests.support.stored_zip import StoredZip


@pytest.mark.parametrize("extension", SUPPORTED_EXTENSIONS)
def test_a_container_is_columnar_where_its_suffix_is(extension: str) -> None:
    container = container_of(extension)
    assert container.is_columnar is is_columnar(extension)
    assert extension in container.suffixes


def test_a_container_with_a_suffix_of_dsorts_own_is_refused_with_all_of_its_suffixes() -> None:
    class Other(StoredZip):
        suffixes = (".other", ".tar")

    tar = container_of("a.tar")
    with pytest.raises(ValueError, match=r"'\.tar'"):
        register(Other())
    assert container_of("a.tar") is tar
    assert not is_supported("a.other")


def test_a_codec_with_a_suffix_of_dsorts_own_is_refused() -> None:
    class Other(SlowCodec):
        suffixes = (".gz",)

    with pytest.raises(ValueError, match=r"'\.gz'"):
        registry._added_codecs.register(Other())
    codec = codec_of("a.tar.gz")
    assert codec is not None
    assert not isinstance(codec, SlowCodec)
