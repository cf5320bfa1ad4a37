"""The texts that name datasets of the Hugging Face Hub: ``datasets/USER/NAME@REVISION/PREFIX``."""

from __future__ import annotations

import re
from typing import Final

from dsort.storage.ref import BucketTextError, shown

HUB_ENDPOINT: Final = "https://huggingface.co"
_NAME = r"(?![^/@]*(?:--|\.\.))[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_SPECIAL_REVISION = r"refs/(?:convert/[A-Za-z0-9_-]+|pr/[0-9]+)"
_REVISION = rf"{_SPECIAL_REVISION}|(?![^/]*\.\.)(?!refs/)[A-Za-z0-9_][A-Za-z0-9._+-]*"
HUB_PATH: Final = (
    rf"datasets/(?P<repo>{_NAME}/{_NAME})(?:@(?P<revision>{_REVISION}))?(?:/(?P<prefix>.+))?"
)
"""The paths of datasets, decoded."""
HUB_FORM: Final = 'write "hf://datasets/USER/NAME", with @REVISION and /PREFIX if needed'
HUB_BUCKET_HINT: Final = (
    "a bucket of the Hub is s3://BUCKET with the endpoint_url https://s3.hf.co/NAMESPACE"
)
HUB_WRITE_HINT: Final = f"to a directory, or s3://, gs://, az://, ais://; {HUB_BUCKET_HINT}"


def checked_dataset(path: str, written: str, uri: str) -> str:
    """``path`` unchanged, if it is the path of a dataset. ``written``: the part of ``path`` behind
    ``datasets/``, not decoded. ``BucketTextError``, which quotes ``uri``, for any other path."""
    if path.startswith("buckets/"):
        raise BucketTextError(f"{shown(uri)} is no dataset, but a bucket", HUB_BUCKET_HINT)
    if not re.fullmatch(HUB_PATH, path):
        raise BucketTextError(f"{shown(uri)} is no dataset of the Hub", HUB_FORM)
    revision = written.partition("@")[2].partition("/")[0].lower()
    if "%2f" in revision and not revision.startswith("refs%2f"):
        raise BucketTextError(
            f"{shown(uri)} has a revision with a slash", "write the commit in its place"
        )
    return path


def dataset_of_page(url: str) -> str:
    """The URI of the dataset or the files that the page ``url`` of the Hub shows; "" for any other
    URL."""
    files = r"/(?:tree|blob|resolve)/(?!refs/)([^/]+)(/.+)?"
    page = re.fullmatch(
        rf"https?://(?:huggingface\.co|hf\.co)/(datasets/{_NAME}/{_NAME})(?:{files})?", url
    )
    if page is None:
        return ""
    revision = f"@{page[2]}" if page[2] else ""
    return f"hf://{page[1]}{revision}{page[3] or ''}"


def revision_end(uri: str) -> int:
    """The length of the part of ``uri`` that ends with the revision of a dataset; 0 if ``uri`` has
    no revision."""
    match = re.match(r"hf://datasets/[^/@]+/[^/@]+@[^/]+", uri, re.IGNORECASE)
    return match.end() if match else 0
