"""Gives staged objects their names, all of them or none. This module uses only the id of the
job."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from msgspec import Struct, field, to_builtins

from dsort.data.json_values import Count, Rows, checked, json_bytes
from dsort.errors import ObjectNotFoundError, StorageError
from dsort.log_lines import logger_of
from dsort.naming.names import check_output_name
from dsort.results.layout import replaced_list_name, replaced_prefix, staged_prefix
from dsort.storage.bucket import COPY, Bucket
from dsort.storage.routed import place_of
from dsort.storage.small_objects import Staged, give_name

AT_ONCE_MAX = 16
A_TURN = 500
KEPT_VERSION = 1
KEPT_BYTES_MAX = 1 << 30
DIGITS_MAX = 18
_SHOWN_MAX = 3
_NOTHING: Final[Mapping[str, str]] = {}

log = logger_of("job")

T = TypeVar("T")


class Kept(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The object that had the name of output ``number``. ``etag``: its ETag when it was kept, "" if
    unknown. ``receipt``: for ``Bucket.put_back``. ``published``: the receipt of the output."""

    number: Count
    name: str
    etag: str
    receipt: str
    published: str


class KeptObjects(Struct):
    """The list of the objects that a job keeps. ``kept``: the format of the list; 0 if there is no
    list, because nothing was replaced yet."""

    kept: int
    objects: list[Kept]


class PutBack(Struct):
    """Which kept objects have their names again, and which do not. ``was_noted``: whether outputs
    had begun to get their names; ``gave_names``: whether this job may have given any. ``kept``: the
    names of all kept objects; ``names``: the names that have their old objects again; ``lost``: for
    each other name, the reason; ``places``: for each lost name, where its object is kept."""

    was_noted: bool = False
    gave_names: bool = False
    kept: set[str] = field(default_factory=set)
    names: list[str] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)

    def lose(self, name: str, place: str, why: str) -> None:
        """Remember that an object could not be put back, and stays where it is kept."""
        self.lost[name], self.places[name] = why, place

    def words(self, uri: str) -> str:
        """A text for the user; "" if nothing was replaced."""
        sentences = []
        if self.names and self.was_noted:
            several = f"{len(self.names):,} objects that the job was to replace are"
            one = "1 object that the job was to replace is"
            sentences.append(f"{several if len(self.names) > 1 else one} as before in {uri}")
        for name, why in list(self.lost.items())[:_SHOWN_MAX]:
            place = self.places[name]
            sentences.append(f"the earlier object {name} is kept as {place} in {uri}: {why}")
        if len(self.lost) > _SHOWN_MAX:
            sentences.append(f"so are {len(self.lost) - _SHOWN_MAX:,} other objects")
        return "; ".join(sentences)


def each_at_once(bucket: Bucket, things: Sequence[T], do: Callable[[T], None]) -> None:
    """Call ``do`` for each thing: several at once in an object store, in turn in a directory."""
    if not bucket.seals_on_finish:
        for each in things:
            do(each)
        return
    with ThreadPoolExecutor(AT_ONCE_MAX) as threads:
        # Some at a time: each thing that waits for a thread takes a kilobyte.
        for at in range(0, len(things), A_TURN):
            for _ in threads.map(do, things[at : at + A_TURN]):
                pass


# Before the first object gets its name, all objects that have such names are kept under
# `.dsort/<job>/replaced/<n>` (see `Bucket.keep_aside`), and then `kept.json` there lists them. As
# long as that file is missing, nothing was replaced. So wherever a job dies, `dsort gc` or a
# resumed job that fails can put back the replaced objects.
class Transaction:
    """The names that one job gives in a bucket.

    ``between``: called before each object; raises if the job has to stop.
    """

    def __init__(
        self, bucket: Bucket, job_id: str, *, between: Callable[[], None] = lambda: None
    ) -> None:
        self._bucket = bucket
        self._job_id = job_id
        self._between = between

    def keep_replaced(
        self,
        staged: Sequence[Staged],
        may_replace: Callable[[str], bool] = lambda name: True,
        *,
        receipts: Mapping[str, str] = _NOTHING,
    ) -> list[Staged]:
        """Keep every object that has a name of ``staged`` and that the job ``may_replace``. Return
        ``staged``; objects that may replace another one now are marked.

        If an earlier attempt has begun to give names, objects that it kept stay kept; objects that
        it published are not kept. ``receipts``: by token, another receipt than the present one,
        with which an earlier attempt may have published.
        """
        bucket, prefix = self._bucket, replaced_prefix(self._job_id)
        noted = read_kept(bucket, self._job_id)
        names = [each.name for each in staged]
        rows = {row.number: row for row in self._known(noted, names)}
        ours: set[str] = set()
        if noted.kept:
            given = ((each, receipts.get(each.token, each.receipt)) for each in staged)
            ours = bucket.published({each.token: (each.name, receipt) for each, receipt in given})
        waiting = [
            at
            for at, each in enumerate(staged)
            if each.token not in ours and may_replace(each.name)
        ]
        if bucket.seals_on_finish:  # a listing is cheaper there than a request for each name
            there = bucket.stat_many([names[number] for number in waiting])
            waiting = [number for number in waiting if names[number] in there]
        kept_as: dict[int, str] = {}

        def keep(number: int) -> None:
            self._between()
            kept_as[number] = bucket.keep_aside(names[number], f"{prefix}{number}")

        each_at_once(bucket, waiting, keep)
        kept = [number for number in waiting if kept_as[number]]
        infos = bucket.stat_many([names[number] for number in kept])
        for number in kept:
            name = names[number]
            etag = infos[name].etag if name in infos else ""
            published = receipts.get(staged[number].token, staged[number].receipt)
            rows[number] = Kept(number, name, etag, kept_as[number], published)
        # The kept objects become durable before the list: after a power cut, every object in the
        # list has to exist.
        bucket.make_durable()
        objects = Rows(to_builtins(rows[number]) for number in sorted(rows))
        data = json_bytes({"kept": KEPT_VERSION, "objects": objects})
        bucket.write(replaced_list_name(self._job_id), data)
        replaced = {row.name for row in rows.values()}
        return [each._replace(replaces=each.name in replaced) for each in staged]

    def publish(
        self,
        first: Sequence[Staged],
        others: Sequence[Staged],
        last: Callable[[], Staged],
        *,
        publisher: Callable[[Sequence[Staged]], None] | None = None,
    ) -> None:
        """Give objects their names: first ``first`` (by the ``publisher`` if there is one), then
        ``others``. When all of these are durable, ``last`` stages one more object, which gets its
        name, too. If ``publish`` fails, ``roll_back`` has to follow."""
        bucket = self._bucket

        def give(each: Staged) -> None:
            self._between()  # may raise: replaced objects are kept, and are put back
            give_name(bucket, each)

        log.debug("%d objects in %s get their names", len(first) + len(others), bucket.uri)
        (publisher or partial(each_at_once, bucket, do=give))(first)
        each_at_once(bucket, others, give)
        bucket.make_durable()
        give(last())
        # The job reports its end only after this call: before it, a power cut could undo the name.
        bucket.make_durable()
        log.debug("the result in %s is complete: its manifest has its name", bucket.uri)

    def roll_back(
        self, names: Sequence[str], given: Mapping[str, tuple[str, str]], *, notes_replaced: bool
    ) -> PutBack:
        """Put back the replaced objects, and remove the objects that this attempt or an earlier
        attempt has named. ``names``: all names that the job gives, by number; ``given``: by token,
        (name, receipt) of objects that may already have their names; ``notes_replaced``: whether
        the job lists the objects that it replaces before it gives names. Only the process that
        holds the job's lease may call this method, because otherwise another job's objects may have
        these names."""
        done = self.put_back(names)
        done.gave_names = bool(given) and (done.was_noted or not notes_replaced)
        if not done.gave_names:
            return done
        new = [given[token][0] for token in self._bucket.published(given)]
        log.debug("%d objects that job %s had named are removed", len(new), self._job_id)
        each_at_once(
            self._bucket, [name for name in new if name not in done.kept], self._bucket.delete
        )
        return done

    def take_back(self, names: Sequence[str], given: Mapping[str, tuple[str, str]]) -> PutBack:
        """Turn objects that have their names into staged ones again, for another attempt, and put
        back the objects that they replaced. Only for directories, where a file can have both
        names."""
        bucket = self._bucket
        tokens = {given[token][0]: token for token in bucket.published(given)}
        for name, token in tokens.items():
            bucket.keep_aside(name, token)
        done = self.put_back(names)
        for name in tokens.keys() - done.kept:
            bucket.delete(name)
        return done

    def put_back(self, names: Sequence[str]) -> PutBack:
        """Give every kept object its name again, unless another writer has stored an object under
        the name meanwhile. ``names``: as for ``roll_back``, but only the known names. Only the
        process that holds the job's lease may call this method, once no attempt gives names any
        more."""
        bucket, job_id = self._bucket, self._job_id
        noted = read_kept(bucket, job_id)
        rows = self._known(noted, names)
        done = PutBack(was_noted=bool(noted.kept), kept={row.name for row in rows})
        if not rows:
            return done
        log.debug("%d objects that job %s replaced are put back", len(rows), job_id)
        prefix = replaced_prefix(job_id)
        kept = {info.name: info for info in bucket.list(prefix)}
        infos = bucket.stat_many([row.name for row in rows])
        tokens = {row.number: f"{staged_prefix(job_id)}{row.number}" for row in rows}
        published = {tokens[row.number]: (row.name, row.published) for row in rows}
        ours = bucket.published(published) if noted.kept else set()

        def give(row: Kept) -> None:
            token = f"{prefix}{row.number}"
            if row.name in infos and tokens[row.number] not in ours:
                now = infos[row.name].etag
                # A copy that is no longer kept was put back.
                was_kept = now == kept[token].etag if token in kept else row.receipt == COPY
                if not noted.kept or now == row.etag or was_kept:
                    done.names.append(row.name)
                elif row.receipt == COPY:  # a version, unlike a copy, stays in the store anyway
                    done.lose(
                        row.name, token, "another writer has stored something under that name since"
                    )
                return
            try:
                bucket.put_back(token, row.name, receipt=row.receipt)
            except StorageError as error:
                done.lose(row.name, token, error.message)
            else:
                done.names.append(row.name)

        each_at_once(bucket, rows, give)
        bucket.make_durable()
        return done

    def _known(self, noted: KeptObjects, names: Sequence[str]) -> list[Kept]:
        """The kept objects: the ``noted`` ones, or, if the job died before it noted them, the
        objects that a search by number finds."""
        if noted.kept:
            return noted.objects
        prefix = replaced_prefix(self._job_id)
        found = self._bucket.list(prefix)
        texts = (each.name.removeprefix(prefix) for each in found)
        # Other programs may have put objects there.
        digits = (text for text in texts if text.isascii() and text.isdecimal())
        numbers = [int(text) for text in digits if len(text) <= DIGITS_MAX]
        return [Kept(at, names[at], "", COPY, "") for at in numbers if at < len(names)]


# -- the list of kept objects --------------------------------------------------------------------


def read_kept(bucket: Bucket, job_id: str) -> KeptObjects:
    """The objects that a job has listed as kept.

    ``StorageError`` if the list is damaged, because then nothing shows where replaced objects are
    kept.
    """
    name = replaced_list_name(job_id)
    try:
        if bucket.stat(name).size_bytes > KEPT_BYTES_MAX:
            raise _damaged(bucket, name, f"it is larger than {KEPT_BYTES_MAX:,} bytes")
        data = bucket.read(name)
    except ObjectNotFoundError:
        return KeptObjects(0, [])
    try:
        kept = checked(json.loads(data), KeptObjects)
        if kept.kept != KEPT_VERSION:
            raise ValueError(f"its format is {kept.kept}")
        for row in kept.objects:
            # The list is read from a bucket: a name in it must not lead elsewhere.
            check_output_name(place_of(row.name)[1])
    except (RecursionError, ValueError) as error:
        raise _damaged(bucket, name, str(error)) from None
    return kept


def _damaged(bucket: Bucket, name: str, why: str) -> StorageError:
    return StorageError(
        f"{name} in {bucket.uri}, the list of the objects that a job replaced, is damaged: {why}",
        hint="the job kept these objects beside the list, by numbers of output shards: check and "
        "remove them",
    )
