"""The environment of code that is not part of dsort: users' functions, programs and commands.

``DSORT_CODE_ENV`` lists variables that functions and programs of steps receive although they may
hold secrets. It is set when the process is started; a spec cannot set it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Final

__all__ = ["code_environment", "outside_environment"]

ALLOWED: Final = "DSORT_CODE_ENV"
_OWN_SECRETS: Final = ("DSORT_DATABASE_URL", "DSORT_TOKEN", "DSORT_TOKEN_FILE")
_SECRET_NAME: Final = re.compile(
    r"^(?:AWS|AZURE|BOTO|CLOUDSDK|GCLOUD|GCS|GOOGLE|MINIO|RCLONE)_"
    r"|(?:^|_)(?:AUTH|CRED|CREDENTIAL|DSN|KEY|PASS|PASSPHRASE|PASSWD|TOKEN)S?(?:_|$)"
    r"|(?:ACCESS|ACCOUNT|API|PRIVATE)KEY|SECRET|PASSWORD|PASSFILE|_PWD$"
    r"|CONNECTION_STRING|DATABASE_UR[IL]|^KUBECONFIG$|^SSH_AUTH_SOCK$"
)
_PASSWORD_IN_URL: Final = re.compile(r"://[^/@\s]*:[^@\s]+@")


def outside_environment() -> dict[str, str]:
    """The environment of this process, without variables that give access to a service or its
    database."""
    return {key: value for key, value in os.environ.items() if key not in _OWN_SECRETS}


def code_environment(more: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process of user code: no secrets except those that the operator allows,
    and one thread for algebra, because there is one such process for each core. ``more``: further
    variables."""
    allowed = os.environ.get(ALLOWED, "").replace(",", " ").split()
    found = {
        key: value
        for key, value in outside_environment().items()
        if not _may_be_secret(key, value) or any(fnmatchcase(key, each) for each in allowed)
    }
    return {"OMP_NUM_THREADS": "1", **found, **more}


def _may_be_secret(key: str, value: str) -> bool:
    found = _SECRET_NAME.search(key.upper()) or _PASSWORD_IN_URL.search(value)
    return found is not None
