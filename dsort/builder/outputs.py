"""Calls that set the order of records, and the places and shards of the output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal, Self

from dsort.builder.fields import BuilderFields, Place, only_given, output_place
from dsort.order.algorithms import ALGORITHMS

__all__ = ["KeyMapCalls", "OrderCalls", "OutputCalls"]

_ENDS: Final = ("output_shard_size", "output_shard_records", "output_shard_count")
_SPLIT: Final = ("split", "outputs", "split_by", "exact", "stratify")
Codec = Literal["gzip", "zstd", "lz4", "snappy", "brotli", "none"]


class OrderCalls(BuilderFields):
    """The order of records. The last call decides."""

    _set_by: ClassVar[Mapping[str, str]] = {
        "algorithm": "order",
    }

    def shuffle(
        self,
        *,
        seed: int | str | None = None,
        interleave: str | Mapping[str, Any] | None = None,
        batches: Mapping[str, Any] | None = None,
    ) -> Self:
        """A random order: the same for the same seed, whatever the workers. ``interleave``: the
        member that holds the class of a record (``cls``), so that all stretches of the output have
        the same proportions of classes; ``batches``: ``{"records": 64, "similar":
        "json.length"}``."""
        by = {"by": interleave} if isinstance(interleave, str) else interleave
        options = {"seed": seed, "interleave": by, "batches": batches}
        shown = {"seed": seed, "interleave": interleave, "batches": batches}
        return self._with_order("shuffle", "shuffle", options, shown)

    def sort(
        self,
        by: str | Sequence[Mapping[str, Any]] = "key",
        *,
        type: Literal["int", "float", "string"] | None = None,  # the name of the field in a spec
        field: str | None = None,
        missing: Literal["abort", "first", "last"] | None = None,
        decreasing: bool | None = None,
        natural: bool | None = None,
        strip: bool | None = None,
        bins: Sequence[float] | None = None,
        compare: Literal["key", "name"] | None = None,
        seed: int | str | None = None,
    ) -> Self:
        """A sorted order. ``by``: ``"key"``; ``"md5"``, the digest of the key; a member with its
        dot (``".cls"``, with ``type``, and ``field`` of a JSON member); a field or another
        expression (``"json.score"``, ``"size(json.text)"``); or several sort keys, each as
        ``algorithm`` of a spec (``[{"kind": "md5"}, ...]``)."""
        options: dict[str, Any] = {
            "content_key_type": type,
            "json_field": field,
            "content_key_missing": missing,
            "decreasing": decreasing,
            "natural": natural,
            "strip": strip,
            "bins": None if bins is None else list(bins),
            "compare": compare,
            "seed": seed,
        }
        shown = {"_by": by, "type": type, "field": field, "decreasing": decreasing}
        if not isinstance(by, str):
            options["keys"] = [dict(each) for each in by]
            return self._with_order("sort", "keys", options, shown)
        kind = {"key": "alphanumeric"}.get(by, by)
        if by.startswith("."):
            kind, options["extension"] = "content", by
        elif kind not in ALGORITHMS:
            kind, options["value"] = "value", by
        return self._with_order("sort", kind, options, shown)

    def keep_order(self) -> Self:
        """Keep records in the order of the inputs."""
        return self._with_order("keep_order", "none", {}, {})

    def order(self, kind: str, **options: Any) -> Self:
        """An algorithm of any kind with its options, also one that another package has added."""
        return self._with_order("order", kind, options, {"_kind": kind, **options})

    def _with_order(
        self, call: str, kind: str, options: Mapping[str, Any], shown: Mapping[str, Any]
    ) -> Self:
        algorithm = {"kind": kind, **only_given(**options)}
        return replace(self, order_call=call)._with(call, {"algorithm": algorithm}, shown=shown)


class OutputCalls(BuilderFields):
    """Outputs and their shards."""

    _set_by: ClassVar[Mapping[str, str]] = {
        "output_bck": "write(...)",
        "output_format": "write(names=...)",
        "output_extension": "write(container=...)",
        "output_shard_size": "write(size=...)",
        "output_shard_size_is": "write(size_is=...)",
        "output_shard_size_counts": "write(size_counts=...)",
        "output_shard_records": "write(records=...)",
        "output_shard_count": "write(count=...)",
        "equalize": "equalize(...)",
        "keep_shards": "keep_shards()",
        "like": "like(...)",
        "split": "split(...)",
        "outputs": "split(...)",
        "split_by": "split(by=...)",
        "exact": "split(exact=...)",
        "stratify": "split(stratify=...)",
        "strip_final_newline": "convert(strip_final_newline=...)",
        "member_defaults": "convert(member_defaults=...)",
        "output_compression_level": "compress(level=...)",
        "output_compression": "convert(compression=...)",
        "row_group_rows": "convert(row_group_rows=...)",
        "row_group_bytes": "convert(row_group_bytes=...)",
        "content_defined_chunks": "convert(content_defined_chunks=...)",
        "lineage": "lineage(...)",
        "output": "view()",
        "overwrite": "write(overwrite=...)",
        "remove_stale": "write(remove_stale=...)",
        "index": "index(...)",
        "checksums": "checksums(...)",
    }

    def split(
        self,
        fractions: Mapping[str, float] | str | None = None,
        *,
        by: str | None = None,
        exact: bool | None = None,
        stratify: str | None = None,
        **more: float,
    ) -> Self:
        """Several outputs, each with a fraction of the records: ``split(train=.98, val=.02)``, or a
        mapping. ``by``: records with the same value of this expression stay together; ``exact``:
        fractions are exact to the record; ``stratify``: the fractions also hold in each class. A
        single name (``split("train")``) names the only output."""
        if isinstance(fractions, str):
            given: dict[str, Any] = {"split": fractions}
        else:
            named = {**(fractions or {}), **more}
            given = {"outputs": [{"name": name, "fraction": it} for name, it in named.items()]}
        given |= {"split_by": by, "exact": exact, "stratify": stratify}
        shown = {"_fractions": fractions, **more, "by": by, "exact": exact, "stratify": stratify}
        return self._without(_SPLIT)._with("split", given, shown=shown)

    def route(
        self, conditions: Mapping[str, str | bool] | None = None, /, **more: str | bool
    ) -> Self:
        """Several outputs. A record goes to the first output whose expression is true:
        ``route(large='size("jpg") > 1_000_000', rest=True)``."""
        named = {**(conditions or {}), **more}
        outputs = [{"name": name, "when": it} for name, it in named.items()]
        return self._without(_SPLIT)._with("route", {"outputs": outputs}, shown=named)

    def output(
        self,
        name: str,
        where: Place | None = None,
        *,
        names: str | None = None,
        size: int | str | None = None,
        records: int | None = None,
        count: int | Mapping[str, int] | None = None,
        size_is: Literal["at_least", "at_most"] | None = None,
        size_counts: Literal["payload", "file"] | None = None,
        container: str | None = None,
        level: int | None = None,
    ) -> Self:
        """Set, for one of several outputs, what differs from the others: its bucket (with the range
        of names, as for ``write``), its ``names`` in the common bucket, its shards, its
        container."""
        own: dict[str, Any] = _ends(size, records, count) | {
            "output_shard_size_is": size_is,
            "output_shard_size_counts": size_counts,
            "output_extension": container,
            "output_compression_level": level,
        }
        if where is not None:
            own["output_bck"], own["output_format"] = output_place(where)
        own["output_format"] = names or own.get("output_format")
        return self._with("output", self._with_own({name: own}), shown={"_name": name, **own})

    def write(
        self,
        where: Place,
        *,
        names: str | None = None,
        records: int | None = None,
        size: int | str | None = None,
        count: int | Mapping[str, int] | None = None,
        multiple_of: int | None = None,
        size_is: Literal["at_least", "at_most"] | None = None,
        size_counts: Literal["payload", "file"] | None = None,
        container: str | None = None,
        overwrite: bool | None = None,
        remove_stale: bool | None = None,
    ) -> Self:
        """The place of the output shards, their names, and their sizes. This call completes the
        spec, and checks it; other calls may follow.

        ``where``: a bucket and the range of names, ``"s3://out/{split}-{n:06d}.tar"``; or a bucket,
        with a template of ``names`` in it. ``records``: the number of records in each shard;
        ``size``: the size of its payload (``"1GB"``); ``count``: the number of shards;
        ``multiple_of``: a number that divides the number of shards. ``container``: a suffix,
        ``".parquet"``.
        """
        bucket, template = output_place(where)
        ends = _ends(size, records, {"multiple_of": multiple_of} if multiple_of else count)
        own = {"_where": where, "names": names, "records": records, "size": size, "count": count}
        shown = {**own, "multiple_of": multiple_of, "container": container, "overwrite": overwrite}
        values = ends | {
            "output_bck": bucket,
            "output_format": names or template,
            "output_shard_size_is": size_is,
            "output_shard_size_counts": size_counts,
            "output_extension": container,
            "overwrite": overwrite,
            "remove_stale": remove_stale,
        }
        said = any(value is not None for value in ends.values())
        start = self._without(_ENDS) if said else self
        return replace(start, is_whole=True)._with("write", values, shown=shown)

    def keep_shards(self) -> Self:
        """Write each input shard as one output shard of the same name."""
        return self._with("keep_shards", {"keep_shards": True}, shown={})

    def like(self, result: str) -> Self:
        """Order records and end shards as in another result, by key. ``result``: the path or URI of
        its manifest or view, or its bucket."""
        return self._with("like", {"like": result}, shown={"_result": result})

    def convert(
        self,
        container: str,
        *,
        row_group_rows: int | None = None,
        row_group_bytes: int | str | None = None,
        compression: Codec | None = None,
        content_defined_chunks: bool | None = None,
        member_defaults: Mapping[str, str] | None = None,
        strip_final_newline: bool | None = None,
    ) -> Self:
        """Write shards of another container: ``".parquet"``, ``".mds"``, ``".tfrecord"``,
        ``".jsonl"``. The other arguments are for containers that support them: rows of a group,
        ``compression`` of columns, members for samples that lack them."""
        own = {
            "row_group_rows": row_group_rows,
            "row_group_bytes": row_group_bytes,
            "output_compression": compression,
            "content_defined_chunks": content_defined_chunks,
            "member_defaults": None if member_defaults is None else dict(member_defaults),
            "strip_final_newline": strip_final_newline,
        }
        shown = {"_container": container, **own}
        return self._with("convert", {"output_extension": container, **own}, shown=shown)

    def index(self, *kinds: str) -> Self:
        """Write files beside the shards for their readers: ``index("wids", "sizes")``."""
        return self._with("index", {"index": list(kinds)}, shown={"_kinds": kinds})

    def checksums(self, kind: Literal["sha256"] = "sha256") -> Self:
        """Put another checksum of each output shard into the manifest."""
        return self._with("checksums", {"checksums": kind}, shown={"_kind": kind})

    def lineage(self, file: Literal["parquet", "jsonl"] = "parquet") -> Self:
        """Write a file with the place of each record in the inputs and in the result."""
        return self._with("lineage", {"lineage": file}, shown={"_file": file})

    def view(self) -> Self:
        """Write no shards, but files that list which bytes of the inputs each shard has."""
        return self._with("view", {"output": "view"}, shown={})

    def equalize(self, how: Literal["drop"]) -> Self:
        """Give all shards the same number of records, and leave out the excess. For a ``count`` of
        shards."""
        return self._with("equalize", {"equalize": how}, shown={"_how": how})

    def compress(self, codec: Codec, *, level: int | None = None) -> Self:
        """A codec for each shard (gzip, zstd, lz4); in tables, for their columns."""
        values = {"codec": codec, "output_compression_level": level}
        return self._with("compress", values, shown={"_codec": codec, "level": level})

    def _without(self, names: Sequence[str]) -> Self:
        left = {name: value for name, value in self.given.items() if name not in names}
        return replace(self, given=MappingProxyType(left))

    def _with_own(self, own: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """``outputs``, with the settings that belong to single outputs."""
        outputs = [dict(each) for each in self.given.get("outputs", ())]
        for name, fields in own.items():
            given = only_given(**fields)
            named = [each for each in outputs if each.get("name") == name]
            for each in named:
                each |= given
            if not named:
                outputs.append({"name": name, **given})
        return {"outputs": outputs}


class KeyMapCalls(BuilderFields):
    """External key maps."""

    _set_by: ClassVar[Mapping[str, str]] = {
        "ekm": "key_map(...)",
        "ekm_file": "key_map(file=...)",
        "ekm_file_sep": "key_map(separator=...)",
        "ekm_default": "key_map(default=...)",
        "compatibility": "set(compatibility=...)",
    }

    def key_map(
        self,
        keys: Mapping[str, Sequence[str]] | None = None,
        *,
        file: str | None = None,
        separator: str | None = None,
        default: str | None = None,
    ) -> Self:
        """An external key map, which gives each record an output template: ``{template: [key]}``,
        or a file. ``default``: the template of all other records."""
        listed = None if keys is None else {name: list(it) for name, it in keys.items()}
        values = {
            "ekm": listed,
            "ekm_file": file,
            "ekm_file_sep": separator,
            "ekm_default": default,
        }
        shown = {"_keys": listed, "file": file, "separator": separator, "default": default}
        return self._with("key_map", values, shown=shown)


def _ends(
    size: int | str | None, records: int | None, count: int | Mapping[str, int] | None
) -> dict[str, Any]:
    whole = dict(count) if isinstance(count, Mapping) else count
    return {
        "output_shard_size": size,
        "output_shard_records": records,
        "output_shard_count": whole,
    }
