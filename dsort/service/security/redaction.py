"""Tokens are kept out of logs, wherever somebody may have put one: into an address, say."""

from __future__ import annotations

import logging
import re

__all__ = ["TokenFilter", "redact"]

_TOKEN = re.compile(r"(dsort_[0-9a-f]{12}_)[0-9a-f]+")


def redact(text: str) -> str:
    """``text`` with the secrets of all tokens in it left out."""
    return _TOKEN.sub(r"\1...", text)


class TokenFilter(logging.Filter):
    """For handlers of logs: lets all records through, without the secrets in them."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Leave out the secrets of a record, of its message, arguments and traceback."""
        if isinstance(record.msg, str):
            record.msg = redact(record.msg)
        if isinstance(record.args, tuple):
            record.args = tuple(_redacted(arg) for arg in record.args)
        elif record.args:
            record.args = {name: _redacted(arg) for name, arg in record.args.items()}
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = redact(record.exc_text)
        return True


def _redacted(arg: object) -> object:
    """The argument; what is no number is turned into the text that it is logged as, if that has a
    secret in it."""
    if isinstance(arg, int | float | None):
        return arg
    text = str(arg)
    clean = redact(text)
    return arg if clean == text else clean
