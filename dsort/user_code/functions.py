"""Runs a Python function, or an object of a class, on records: the steps ``map``, ``flat_map``."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dsort.naming.names import KEY_COLUMN, SAMPLE_FIELDS
from dsort.user_code.encoding import DECODERS, encoded, encoded_cell
from dsort.user_code.frames import (
    BadResultError,
    Outcome,
    Runner,
    Sample,
    check_extension,
    check_key,
    said_briefly,
)

_DIRECTORY = re.compile(r"([^-]+)-([^-]+)\.(?:dist-info|egg-info)")
_OTHERWISE = {"PIL": "pillow", "cv2": "opencv_python", "sklearn": "scikit_learn", "yaml": "pyyaml"}
_PLACES = ("site-packages", "dist-packages")


def loaded_packages(more: Iterable[str] = ()) -> dict[str, str]:
    """The versions of all packages of which a module is loaded, by name. ``more``: modules that may
    be loaded later."""
    tops = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names
    there = _installed()
    found, unknown = {}, []
    for top in [*tops, *more]:
        name, version = there.get(_normal(_OTHERWISE.get(top, top)), ("", ""))
        if version:
            found[name] = version
        elif _is_packaged(top):
            unknown.append(top)
    if unknown:
        from importlib import metadata

        known = metadata.packages_distributions()
        names = {name for top in unknown for name in known.get(top, ())}
        found |= {name: metadata.version(name) for name in names}
    return {name: found[name] for name in sorted(found, key=str.lower)}


def _installed() -> dict[str, tuple[str, str]]:
    """(name, version) of installed packages by normalised name; the first on the path if there are
    several."""
    found: dict[str, tuple[str, str]] = {}
    for place in sys.path:
        try:
            entries = sorted(entry.name for entry in Path(place or ".").iterdir())
        except OSError:
            continue
        for entry in entries:
            match = _DIRECTORY.fullmatch(entry)
            if match:
                found.setdefault(_normal(match[1]), (match[1], match[2]))
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def _is_packaged(top: str) -> bool:
    """Whether a module belongs to an installed package, and its name is public."""
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    return not top.startswith("_") and any(each in file for each in _PLACES)


ENCODERS = ("numpy", "PIL")
FILE_MODULE = "dsort_user_code_file"


def load_object(place: str) -> Any:
    """The object at ``package.module:name`` or ``path/file.py:name``. Raises any error of the
    import; ``AttributeError`` if the name does not exist."""
    where, _, name = place.rpartition(":")
    if where.endswith(".py"):
        path = Path(where).absolute()
        if not path.is_file():
            raise ImportError(f"there is no file {path}")
        spec = importlib.util.spec_from_file_location(FILE_MODULE, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path} is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[FILE_MODULE] = module
        before, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # no files beside a spec
        spec.loader.exec_module(module)
        sys.dont_write_bytecode = before
    else:
        module = importlib.import_module(where)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise AttributeError(f"{where} has no {part}")
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{place} cannot be called: it is a {type(found).__name__}")
    return found


class FunctionRunner(Runner):
    """Calls the user's function with samples in webdataset's form: ``__key__``, and content by
    extension."""

    def __init__(self, program: Mapping[str, Any]) -> None:
        """``program``: the description of the step (``dsort.transforms.programs``)."""
        self._place = program["python"]
        self._args: dict[str, Any] = program["args"]
        cells: dict[str, str] | None = program.get("cells")
        decode = {**(cells or {}), **program["decode"]}
        self._decode = {name: DECODERS[kind] for name, kind in decode.items() if kind != "bytes"}
        self._columns = None if cells is None else dict.fromkeys(cells)
        self._drop = frozenset(program["drop"])
        self._keys = program.get("keys")
        self._may_stay = self._keys is None and not self._drop
        self._batched = program["batch_size"] is not None
        self.batch_size = program["batch_size"] or 1
        found = load_object(self._place)
        is_class = isinstance(found, type)
        self._given = {} if is_class else self._args
        # Objects that need a GPU are not made for a description, which may run without one.
        makes = is_class and not (program["describe"] and program["wants_gpu"])
        self._call: Any = found(**self._args) if makes else found
        self._salt = f"{program['seed']} {program['number']}" if _takes_rng(self._call) else None
        self._known: set[str] = set()

    def run(self, samples: Sequence[Sample]) -> list[Outcome]:
        """The outcome of each of ``samples``."""
        if not self._batched:
            return [self.one(sample) for sample in samples]
        if len(samples) > 1:
            # The record that fails is found below.
            with contextlib.suppress(Exception, SystemExit):
                return self._batch(samples)
        return [self._guarded(self._batch_of_one, sample) for sample in samples]

    def close(self) -> None:
        """Close the user's object, if it can be closed."""
        close = getattr(self._call, "close", None)
        if callable(close):
            with contextlib.suppress(Exception):
                close()

    def description(self) -> dict[str, object]:
        """The hash of the source, and the packages that are loaded with it."""
        state = hashlib.sha256()
        for name, digest in sorted(self.sources().items()):
            state.update(f"{name} {digest}\n".encode())
        return {"source_sha256": state.hexdigest(), "packages": loaded_packages(ENCODERS)}

    def sources(self) -> dict[str, str]:
        """The hashes of the sources of all loaded modules of its package."""
        import inspect  # its import takes longer than all others here

        module = inspect.getmodule(inspect.unwrap(_source_of(self._call)))
        return _source_hashes(module.__name__ if module is not None else "")

    def one(self, sample: Sample) -> Outcome:
        """The outcome of ``sample``."""
        return self.run([sample])[0] if self._batched else self._guarded(self._single, sample)

    def _guarded(self, action: Callable[[Sample], list[Sample]], sample: Sample) -> Outcome:
        try:
            return action(sample)
        except BadResultError as error:
            return str(error)
        except MemoryError:
            raise  # earlier records may be the cause: another process tries again
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code may raise anything
            return _told(error)

    def _single(self, sample: Sample) -> list[Sample]:
        given = self._decoded(sample)
        if self._salt is None:
            result = self._call(given, **self._given)
        else:
            result = self._call(given, rng=self._rng(sample.key), **self._given)
        return self._results(sample, result)

    def _batch_of_one(self, sample: Sample) -> list[Sample]:
        (found,) = self._batch([sample])
        assert not isinstance(found, str)
        return found

    def _batch(self, samples: Sequence[Sample]) -> list[Outcome]:
        given = [self._decoded(sample) for sample in samples]
        if self._salt is None:
            results = self._call(given, **self._given)
        else:
            rngs = [self._rng(sample.key) for sample in samples]
            results = self._call(given, rng=rngs, **self._given)
        if isinstance(results, (Mapping, str, bytes)) or not isinstance(results, Iterable):
            text = f"a batch returned no list of samples, but {type(results).__name__}"
            raise BadResultError(text)
        results = list(results)
        if len(results) != len(samples):
            raise BadResultError(f"a batch of {len(samples)} samples became {len(results)}")
        return [self._results(*pair) for pair in zip(samples, results, strict=True)]

    def _decoded(self, sample: Sample) -> dict[str, Any]:
        given: dict[str, Any] = {KEY_COLUMN: sample.key}
        if self._columns is not None:
            given |= self._columns  # None, if a row has no value
        given |= sample.members
        if self._decode:
            for extension, decode in self._decode.items():
                if extension in sample.members:
                    given[extension] = decode(sample.members[extension])
        return given

    def _rng(self, key: str) -> Any:
        import numpy as np
        import xxhash

        salt = xxhash.xxh3_64_intdigest(f"rng {self._salt}".encode())
        data = key.encode("utf-8", "surrogateescape")
        return np.random.default_rng(xxhash.xxh3_64_intdigest(data, seed=salt))

    def _results(self, sample: Sample, result: Any) -> list[Sample]:
        if result is None:
            return []
        if self._may_stay and type(result) is dict and len(result) == len(sample.members) + 1:
            key, old = sample.key, sample.members
            # The very same objects: compared by identity, because values of any type may not
            # support equality.
            if [*result] == [KEY_COLUMN, *old] and [*map(id, result.values())] == [
                id(key),
                *map(id, old.values()),
            ]:
                return [sample]
        if self._keys is None:
            return self._result(sample, result, sample.key)
        if isinstance(result, (Mapping, str, bytes)) or not isinstance(result, Iterable):
            raise BadResultError(f"it returned no samples, but {type(result).__name__}")
        found: list[Sample] = []
        for i, each in enumerate(result):
            if each is not None:
                key = self._keys.format(key=sample.key, i=i)
                check_key(key)
                found += self._result(sample, each, key)
        return found

    def _result(self, sample: Sample, result: Any, key: str) -> list[Sample]:
        if not isinstance(result, Mapping):
            raise BadResultError(f"it returned no dict, but {type(result).__name__}")
        own_key = result.get(KEY_COLUMN, sample.key)
        if own_key is not sample.key and own_key != sample.key:
            check_key(own_key)
            key = own_key
        members = {}
        for extension, value in result.items():
            # Only the member of a stray has no extension; other members need one.
            if extension not in sample.members and extension not in self._known:
                if extension in SAMPLE_FIELDS:
                    continue
                check_extension(extension)
                self._known.add(extension)
            if extension in self._drop:
                continue
            if self._columns is None:
                members[extension] = value if type(value) is bytes else encoded(extension, value)
            elif value is not None:
                members[extension] = encoded_cell(extension, value)
        return [Sample(key, members)] if members else []


def _source_of(call: Any) -> Any:
    """The part of ``call`` that has a source: a function or a class itself, or the class of an
    object."""
    import inspect

    return call if inspect.isroutine(call) or inspect.isclass(call) else type(call)


def _takes_rng(call: Callable[..., Any]) -> bool:
    code = getattr(call, "__code__", None) or getattr(type(call).__call__, "__code__", None)
    if code is not None and not hasattr(call, "__wrapped__"):
        return "rng" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    import inspect

    try:
        return "rng" in inspect.signature(call).parameters
    except (TypeError, ValueError):  # some built-in functions have no signature
        return False


def _told(error: BaseException) -> str:
    """The error and the place where it was raised, in one line."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(str(Path(__file__).parent))]
    where = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    return said_briefly(f"{type(error).__name__}: {error}") + where


def _source_hashes(module: str) -> dict[str, str]:
    """The hashes of the source files of all loaded modules of the package of ``module``."""
    top, found = module.partition(".")[0], {}
    for name in sorted(sys.modules):
        if name.partition(".")[0] != top:
            continue
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).is_file():
            found[name] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return found
