"""Settings in their written form: tables of a TOML file, and variables of the environment.

For both, one table of fields lists the settings, and how each is read. Values that might be secrets
are refused by their names, and never repeated in messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from dsort.errors import SpecError, SpecProblem
from dsort.naming.names import closest
from dsort.settings.values import Settings, StoreSettings, table_of
from dsort.sizes import format_bytes, parse_size_bytes
from dsort.storage.ref import SECRET_HINT, BucketTextError, checked_endpoint, is_secret_name
from dsort.storage.registry import parse_store_uri, split_scheme, store_of, stores

SETTINGS_FILE: Final = "dsort.toml"

FILE_BYTES_MAX: Final = 1 << 20
PART_BYTES_MIN: Final = 5 << 20  # of a multipart upload, the limit of S3
PART_BYTES_MAX: Final = 5 << 30
PREFIX: Final = "DSORT_"


class _Place(Struct, frozen=True):
    """How to resolve paths in a text: relative paths start at ``directory``, ``~`` is ``home``."""

    directory: Path
    home: Path


_Reader = Callable[[object, _Place], object]


def _text(value: object, place: _Place) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise BucketTextError("must be a text of printable characters")
    return value


def _endpoint(value: object, place: _Place) -> str:
    return checked_endpoint(_text(value, place))


def _path(value: object, place: _Place) -> Path:
    text = _text(value, place)
    if text == "~" or text.startswith("~/"):
        return place.home / text[2:]
    return place.directory / text


def _count(value: object, place: _Place) -> int:
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BucketTextError("must be a whole number of at least 1")
    return value


def _size(value: object, place: _Place) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise BucketTextError('must be a size, e.g. "16MB"')
    size_bytes = parse_size_bytes(value)
    if size_bytes == 0:
        raise BucketTextError("must be more than 0 bytes")
    return size_bytes


def _part_size(value: object, place: _Place) -> int:
    size_bytes = _size(value, place)
    if not PART_BYTES_MIN <= size_bytes <= PART_BYTES_MAX:
        allowed = f"{format_bytes(PART_BYTES_MIN)} to {format_bytes(PART_BYTES_MAX)}"
        raise BucketTextError(f"must be {allowed}, the sizes of parts that stores accept")
    return size_bytes


def _rate(value: object, place: _Place) -> float:
    return float(_size(value, place))


def _exchange(value: object, place: _Place) -> str:
    if value not in ("direct", "ray"):
        raise BucketTextError('must be "direct" or "ray"')
    return str(value)


def _ports(value: object, place: _Place) -> tuple[int, int]:
    first, dash, last = _text(value, place).partition("-")
    if (
        dash
        and all(each.isascii() and each.isdecimal() for each in (first, last))
        and 0 < int(first) <= int(last) < 1 << 16
    ):
        return int(first), int(last)
    raise BucketTextError('must be the first and the last port, e.g. "20000-20100"')


def _network(value: object, place: _Place) -> str:
    from ipaddress import ip_network

    try:
        return str(ip_network(_text(value, place)))
    except ValueError:
        raise BucketTextError('must be a network, e.g. "10.1.0.0/16"') from None


_TOP: Final[Mapping[str, tuple[str, _Reader]]] = {
    "root": ("root", _path),
    "scratch": ("scratch", _path),
    "memory_max": ("memory_max_bytes", _size),
    "bandwidth_max": ("bandwidth_max_bytes_per_s", _rate),
    "workers": ("workers", _count),
    "ray_address": ("ray_address", _text),
    "exchange": ("exchange", _exchange),
    "exchange_ports": ("exchange_ports", _ports),
    "exchange_network": ("exchange_network", _network),
}
"""The settings for jobs, by their names in a file: the field here, and its reader."""

_OF_ALL_STORES: Final[Mapping[str, tuple[str, _Reader]]] = {
    "requests_in_flight_max": ("requests_in_flight_max", _count),
    "part_bytes": ("part_bytes", _part_size),
    "bandwidth_max": ("bandwidth_max_bytes_per_s", _rate),
}
_REACH: Final[Mapping[str, tuple[str, _Reader]]] = {
    "endpoint_url": ("endpoint_url", _endpoint),
    "region": ("region", _text),
    "profile": ("profile", _text),
}


def _store_tables() -> dict[str, Mapping[str, tuple[str, _Reader]]]:
    """The settings for each store, by the usual scheme of its URIs; the store with the most
    settings first."""
    return {
        store.schemes[0]: {
            **{name: _REACH[name] for name in store.reach},
            **_OF_ALL_STORES,
        }
        for store in sorted(stores(), key=lambda each: -len(each.reach))
    }


_USUAL: Final = (
    ("AWS_ENDPOINT_URL_S3", "s3"),
    ("AWS_ENDPOINT_URL", "s3"),
    ("AIS_ENDPOINT", "ais"),
    ("HF_ENDPOINT", "hf"),
)
"""Variables that other programs read too, and the store whose endpoint they set. If several are set
for a store, the first one in this table is used."""


def load_settings(environment: Mapping[str, str], cwd: Path, home: Path) -> Settings:
    """The settings of a user with this environment, current directory and home.

    It reads ``dsort.toml`` in ``cwd``, and in ``$XDG_CONFIG_HOME/dsort`` or ``~/.config/dsort``.
    ``SpecError`` lists all mistakes, each with its file or variable.
    """
    problems: list[SpecProblem] = []
    config = environment.get("XDG_CONFIG_HOME", "")
    directory = Path(config) if config.startswith("/") else home / ".config"
    layers = [
        _read_environment(environment, home, problems),
        _read_file(cwd / SETTINGS_FILE, home, problems),
        _read_file(directory / "dsort" / SETTINGS_FILE, home, problems, is_users=True),
        _read_usual_variables(environment, problems),
    ]
    if problems:
        raise SpecError(problems)
    found = Settings()
    for layer in reversed(layers):
        found = layer.over(found)
    return found


# --- files ---------------------------------------------------------------------------------------


def _read_file(
    path: Path, home: Path, problems: list[SpecProblem], *, is_users: bool = False
) -> Settings:
    """The settings in ``path``, none if there is no such file. Mistakes are added to ``problems``.

    ``is_users``: the user's own file. Only the user's own file may define commands. Otherwise, a
    job that is started in another user's directory could run that user's programs.
    """
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except (FileNotFoundError, NotADirectoryError):
        return Settings()
    except OSError as error:
        problems.append(SpecProblem(str(path), f"cannot read it: {error.strerror}"))
        return Settings()
    if len(data) > FILE_BYTES_MAX:
        problems.append(SpecProblem(str(path), "too big for a settings file (max 1 MiB)"))
        return Settings()
    import tomllib

    try:
        document = tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        problems.append(SpecProblem(str(path), f"not UTF-8 at byte {error.start}"))
        return Settings()
    except RecursionError:
        problems.append(SpecProblem(str(path), "its lists and tables are nested too deep"))
        return Settings()
    except tomllib.TOMLDecodeError as error:
        hint = "texts are quoted in TOML, also the names of tables that have a : in them"
        problems.append(SpecProblem(str(path), f"no TOML: {error}", hint))
        return Settings()
    place = _Place(path.parent, home)
    by_store, commands = document.pop("stores", {}), document.pop("commands", {})
    values = _values(document, {**_TOP}, f"{path}: ", place, problems, also=("stores", "commands"))
    tables = dict(_tables(by_store, f"{path}: stores", place, problems))
    if commands and not is_users:
        hint = "write them to ~/.config/dsort/dsort.toml"
        problems.append(SpecProblem(f"{path}: commands", "is only for the user's own file", hint))
        commands = {}
    programs = tuple(_commands(commands, f"{path}: commands", problems))
    return Settings(**values, stores=tuple(tables.items()), commands=programs)


def _commands(
    commands: object, where: str, problems: list[SpecProblem]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(name, program and arguments) of each command."""
    hint = 'e.g. page-us = ["/usr/local/bin/page", "--team", "data"]'
    if not isinstance(commands, dict):
        problems.append(SpecProblem(where, "must be a table", hint))
        return
    for name, words in commands.items():
        if (
            isinstance(words, list)
            and words
            and all(isinstance(word, str) and "\0" not in word for word in words)
            and words[0].startswith("/")
        ):
            yield name, tuple(words)
        else:
            message = "must be a list of texts: a program by its whole path, and its arguments"
            problems.append(SpecProblem(f"{where}.{name}", message, hint))


def _tables(
    written_tables: object, where: str, place: _Place, problems: list[SpecProblem]
) -> Iterator[tuple[str, StoreSettings]]:
    if not isinstance(written_tables, dict):
        problems.append(SpecProblem(where, "must be a table", "write [stores.s3]"))
        return
    for name, table in written_tables.items():
        written = split_scheme(name)
        store_of(name)  # may be the store of an installed package
        tables = _store_tables()
        known = tables.get(name)
        key = name
        if written is not None:
            try:
                ref = parse_store_uri(name)
            except BucketTextError as error:
                problems.append(SpecProblem(where, str(error), error.hint))
                continue
            key, known = ref.uri, tables[table_of(ref.scheme)]
        if known is None:
            near = closest(name, tables)
            several = f"known: {', '.join(tables)}, or the URI of a bucket, in quotes"
            hint = f'did you mean "{near}"?' if near else several
            problems.append(SpecProblem(f"{where}.{name}", "unknown store", hint))
        elif not isinstance(table, dict):
            problems.append(SpecProblem(f"{where}.{name}", "must be a table"))
        else:
            label = f'{where}."{name}".' if written else f"{where}.{name}."
            yield key, StoreSettings(**_values(table, known, label, place, problems))


def _values(
    table: Mapping[str, object],
    known: Mapping[str, tuple[str, _Reader]],
    where: str,
    place: _Place,
    problems: list[SpecProblem],
    *,
    also: tuple[str, ...] = (),
) -> dict[str, Any]:
    """The values of a table, by the names of the fields in this package."""
    values: dict[str, Any] = {}
    for name, value in table.items():
        if name in known:
            field, reader = known[name]
            try:
                values[field] = reader(value, place)
            except ValueError as error:
                hint = error.hint if isinstance(error, BucketTextError) else ""
                problems.append(SpecProblem(f"{where}{name}", str(error), hint))
        elif is_secret_name(name):
            problems.append(SpecProblem(f"{where}{name}", "does not belong here", SECRET_HINT))
        else:
            names = [*known, *also]
            near = closest(name, names)
            hint = f'did you mean "{near}"?' if near else f"known: {', '.join(names)}"
            problems.append(SpecProblem(f"{where}{name}", "unknown setting", hint))
    return values


# --- variables -----------------------------------------------------------------------------------


def _read_environment(
    environment: Mapping[str, str], home: Path, problems: list[SpecProblem]
) -> Settings:
    """The settings in ``DSORT_*`` variables: ``DSORT_ROOT``, ``DSORT_S3_ENDPOINT_URL`` and so on.
    Empty variables are ignored; relative paths are left as they are."""
    given = {
        name.removeprefix(PREFIX).lower(): value
        for name, value in environment.items()
        if name.startswith(PREFIX) and value
    }
    place = _Place(Path(), home)
    top = {name: value for name, value in given.items() if name in _TOP}
    values = _values_of_variables(top, _TOP, PREFIX, place, problems)
    found_stores = []
    for store, known in _store_tables().items():
        table = {
            name.removeprefix(f"{store}_"): value
            for name, value in given.items()
            if name.startswith(f"{store}_")
        }
        if table:
            label = f"{PREFIX}{store.upper()}_"
            found = _values_of_variables(table, known, label, place, problems)
            found_stores.append((store, StoreSettings(**found)))
    return Settings(**values, stores=tuple(found_stores))


def _values_of_variables(
    table: Mapping[str, str],
    known: Mapping[str, tuple[str, _Reader]],
    label: str,
    place: _Place,
    problems: list[SpecProblem],
) -> dict[str, Any]:
    """Like ``_values``, with the names of variables in error messages."""
    variables = {f"{label}{name.upper()}": reader for name, reader in known.items()}
    written = {f"{label}{name.upper()}": value for name, value in table.items()}
    return _values(written, variables, "", place, problems)


def _read_usual_variables(environment: Mapping[str, str], problems: list[SpecProblem]) -> Settings:
    """The endpoints in variables that other programs read as well."""
    stores: dict[str, StoreSettings] = {}
    for variable, store in _USUAL:
        text = environment.get(variable, "")
        if not text or store in stores:
            continue
        try:
            stores[store] = StoreSettings(endpoint_url=checked_endpoint(text))
        except BucketTextError as error:
            problems.append(SpecProblem(variable, str(error), error.hint))
    return Settings(stores=tuple(stores.items()))
