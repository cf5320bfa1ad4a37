"""What the registry says of containers without loading them is what they say."""

from __future__ import annotations

import pytest

from dsort.containers.registry import SUPPORTED_EXTENSIONS, container_of, is_columnar


@pytest.mark.parametrize("extension", SUPPORTED_EXTENSIONS)
def test_a_container_is_columnar_where_its_suffix_is(extension: str) -> None:
    container = container_of(extension)
    assert container.is_columnar is is_columnar(extension)
    assert extension in container.suffixes
