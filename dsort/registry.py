"""Things with a name in specs: algorithms, steps and stores, of dsort and of packages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from dsort.errors import DsortError

__all__ = ["Registry"]

T = TypeVar("T")


class Registry(dict[str, T], Generic[T]):
    """The items by name, in the order in which messages list them. A package adds items by entry
    points of ``group``, each of which names an item."""

    def __init__(
        self,
        group: str,
        names_of: Callable[[T], Iterable[str]],
        own: Iterable[T],
        *,
        make: Callable[[Any], T] = lambda found: found,
        reserved: Iterable[str] = (),
    ) -> None:
        """``names_of``: the names of an item. ``own``: dsort's own items. ``make``: makes the item
        from the object that an entry point names. ``reserved``: names that no item may have,
        because they already mean something else in dsort."""
        super().__init__()
        self._reserved = frozenset(reserved)
        self._group, self._names_of, self._make = group, names_of, make
        self._has_installed = False
        for each in own:
            self.register(each)

    def register(self, item: T) -> None:
        """Add ``item``. ``ValueError`` if another item has one of its names."""
        names = tuple(self._names_of(item))
        for name in names:
            if name in self._reserved or self.get(name, item) is not item:
                raise ValueError(f"{name!r} is there already in {self._group}")
        self.update(dict.fromkeys(names, item))

    def find(self, name: str) -> T | None:
        """The item with this name, also of an installed package; None if there is none."""
        if name not in self:
            self.load_installed()
        return self.get(name)

    def load_installed(self) -> bool:
        """Add the items of installed packages, once in a process; return whether any item is new.
        This is called for an unknown name only, because looking for packages takes 30 ms."""
        if self._has_installed:
            return False
        # Set first: a package may look for an item while it is loaded.
        self._has_installed = True
        from importlib.metadata import entry_points

        found = entry_points(group=self._group)
        for each in found:
            try:
                self.register(self._make(each.load()))
            except (ImportError, AttributeError, ValueError) as error:
                raise DsortError(
                    f"{each.value}, which a package adds to {self._group}, is not usable: {error}",
                    hint="update the package, or remove it",
                ) from None
        return bool(found)
