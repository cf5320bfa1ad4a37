"""Settings as values, and what they say about a bucket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from dsort.errors import SpecError
from dsort.storage.limit import StoreLimits
from dsort.storage.ref import AIS_ENDPOINT_HINT, BucketRef
from dsort.storage.registry import store_of

__all__ = ["Settings", "StoreSettings", "resolve_ref", "table_of"]

AIS_S3_PATH = "/s3"
"""Where AIStore speaks S3, seen from its endpoint."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """What is set for one store, or one bucket of it; "" and None: nothing."""

    endpoint_url: str = ""
    region: str = ""
    profile: str = ""
    requests_in_flight_max: int | None = None
    part_bytes: int | None = None
    bandwidth_max_bytes_per_s: float | None = None

    def over(self, other: StoreSettings) -> StoreSettings:
        """These settings, and those of ``other`` where nothing is set here."""
        return replace(other, **_given(self))


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a user. Made by :func:`load_settings`; ``Settings()`` has none.

    ``exchange``: how spill goes between the nodes of a cluster: ``"direct"`` or ``"ray"``;
    ``exchange_ports``: first and last port that nodes may listen on for it; ``exchange_network``:
    with which of their addresses, as ``"10.1.0.0/16"``.

    ``stores`` are pairs of a store (``"s3"``, ``"gs"``, ``"az"``, ``"ais"``, ``"http"``) or of the
    URI of a bucket, and what is set for it. ``commands`` are pairs of a name that hooks may say,
    and the program that it stands for, with its arguments.
    """

    root: Path | None = None
    scratch: Path | None = None
    memory_max_bytes: int | None = None
    bandwidth_max_bytes_per_s: float | None = None
    workers: int | None = None
    ray_address: str | None = None
    exchange: str | None = None
    exchange_ports: tuple[int, int] | None = None
    exchange_network: str | None = None
    stores: tuple[tuple[str, StoreSettings], ...] = ()
    commands: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Self:
        """The settings whose ``asdict`` somebody made JSON of, paths as texts; none of its
        ``commands``."""
        paths = {name: values[name] for name in ("root", "scratch")}
        found: dict[str, Any] = {
            name: None if text is None else Path(text) for name, text in paths.items()
        }
        stores = tuple((store, StoreSettings(**table)) for store, table in values["stores"])
        ports = values.get("exchange_ports")
        found["exchange_ports"] = None if ports is None else tuple(ports)
        return cls(**{**values, **found, "stores": stores, "commands": ()})

    @property
    def ais_is_there(self) -> bool:
        """Whether an endpoint of AIStore is known."""
        return bool(self.of_store("ais").endpoint_url)

    def over(self, other: Settings) -> Settings:
        """These settings, and those of ``other`` where nothing is set here."""
        stores = dict(other.stores)
        for store, table in self.stores:
            stores[store] = table.over(stores.get(store, StoreSettings()))
        commands = {**dict(other.commands), **dict(self.commands)}
        values = {**_given(self), "stores": tuple(stores.items())}
        return replace(other, **{**values, "commands": tuple(commands.items())})

    def of_store(self, store: str) -> StoreSettings:
        """What is set for all buckets of ``store``."""
        return dict(self.stores).get(store, StoreSettings())

    def of_bucket(self, ref: BucketRef) -> StoreSettings:
        """What is set for a bucket: by its own table, by that of a shorter URI, by its store's."""
        uri = ref.uri
        found = self.of_store(table_of(ref.scheme))
        tables = [each for each in self.stores if f"{uri}/".startswith(f"{each[0]}/")]
        for _, table in sorted(tables, key=lambda each: len(each[0])):
            found = table.over(found)
        return found

    def limits(self, ref: BucketRef) -> StoreLimits:
        """How much one process may ask of the store that ``ref`` is in."""
        found, usual = self.of_bucket(ref), StoreLimits()
        return replace(
            usual,
            requests_in_flight_max=found.requests_in_flight_max or usual.requests_in_flight_max,
            part_bytes=found.part_bytes or usual.part_bytes,
            bandwidth_max_bytes_per_s=found.bandwidth_max_bytes_per_s,
        )


def _given(settings: Settings | StoreSettings) -> dict[str, Any]:
    values = {each.name: getattr(settings, each.name) for each in fields(settings)}
    return {name: value for name, value in values.items() if value not in ("", None)}


def table_of(scheme: str) -> str:
    """The name of the table under ``[stores]`` for buckets whose URIs have ``scheme``."""
    store = store_of(scheme)
    return scheme if store is None else store.schemes[0]


def resolve_ref(ref: BucketRef, settings: Settings) -> BucketRef:
    """``ref`` with the endpoint, region and profile that the settings give and it does not.

    Directories and web servers stay as they are. ``ais://`` is S3 under ``/s3`` of its endpoint;
    ``SpecError`` if none is known. Resolving twice changes nothing.
    """
    store = store_of(ref.scheme)
    if store is None or not store.reach:
        return ref
    found = settings.of_bucket(ref)
    endpoint_url = ref.endpoint_url or found.endpoint_url
    if ref.scheme == "ais":
        if not endpoint_url:
            raise SpecError(
                f"bucket {ref.uri}: it is not known where AIStore is", hint=AIS_ENDPOINT_HINT
            )
        endpoint_url = endpoint_url.removesuffix(AIS_S3_PATH) + AIS_S3_PATH
    return replace(
        ref,
        endpoint_url=endpoint_url,
        region=ref.region or found.region,
        profile=ref.profile or found.profile,
    )
