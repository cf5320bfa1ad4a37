"""The base of classes that a ``with`` closes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

__all__ = ["ClosesOnExit"]


class ClosesOnExit(ABC):
    """Base of classes with a ``close``. A ``with`` calls ``close``, whatever happens in its
    body."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Release what the object holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
