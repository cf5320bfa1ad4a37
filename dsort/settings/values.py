"""Settings as values, and the choice of those that apply to a bucket."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import asdict, replace

from dsort.errors import SpecError
from dsort.storage.limit import StoreLimits
from dsort.storage.ref import AIS_ENDPOINT_HINT, BucketRef
from dsort.storage.registry import store_of

AIS_S3_PATH = "/s3"
"""The path of AIStore's S3 interface, relative to its endpoint."""


class StoreSettings(Struct, frozen=True):
    """The settings for one store, or for one bucket of it; "" and None: not set."""

    endpoint_url: str = ""
    region: str = ""
    profile: str = ""
    requests_in_flight_max: int | None = None
    part_bytes: int | None = None
    bandwidth_max_bytes_per_s: float | None = None

    def over(self, other: StoreSettings) -> StoreSettings:
        """These settings, completed by those of ``other`` where they are not set."""
        return replace(other, **_given(self))


class Settings(Struct, frozen=True):
    """All settings of a user. Made by :func:`load_settings`; ``Settings()`` sets nothing.

    ``exchange``: how the nodes of a cluster exchange spill: ``"direct"`` or ``"ray"``;
    ``exchange_ports``: first and last port that nodes may listen on for it; ``exchange_network``:
    the network of the addresses that nodes use for it, as ``"10.1.0.0/16"``.

    ``stores`` are pairs: a store (``"s3"``, ``"gs"``, ``"az"``, ``"ais"``, ``"http"``) or the URI
    of a bucket, and its settings. ``commands`` are pairs of a name that hooks may use, and its
    program with arguments.
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
        """The settings from the JSON of their ``asdict``, in which paths are texts and ``commands``
        are missing."""
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
        """Whether an endpoint of AIStore is configured."""
        return bool(self.of_store("ais").endpoint_url)

    def over(self, other: Settings) -> Settings:
        """These settings, completed by those of ``other`` where they are not set."""
        stores = dict(other.stores)
        for store, table in self.stores:
            stores[store] = table.over(stores.get(store, StoreSettings()))
        commands = {**dict(other.commands), **dict(self.commands)}
        values = {**_given(self), "stores": tuple(stores.items())}
        return replace(other, **{**values, "commands": tuple(commands.items())})

    def of_store(self, store: str) -> StoreSettings:
        """The settings for all buckets of ``store``."""
        return dict(self.stores).get(store, StoreSettings())

    def of_bucket(self, ref: BucketRef) -> StoreSettings:
        """The settings for a bucket: from its own table, then from the table of a shorter URI, then
        from its store's table."""
        uri = ref.uri
        found = self.of_store(table_of(ref.scheme))
        tables = [each for each in self.stores if f"{uri}/".startswith(f"{each[0]}/")]
        for _, table in sorted(tables, key=lambda each: len(each[0])):
            found = table.over(found)
        return found

    def limits(self, ref: BucketRef) -> StoreLimits:
        """The limits of one process for the store that ``ref`` is in."""
        found, usual = self.of_bucket(ref), StoreLimits()
        return replace(
            usual,
            requests_in_flight_max=found.requests_in_flight_max or usual.requests_in_flight_max,
            part_bytes=found.part_bytes or usual.part_bytes,
            bandwidth_max_bytes_per_s=found.bandwidth_max_bytes_per_s,
        )


def _given(settings: Settings | StoreSettings) -> dict[str, Any]:
    values = asdict(settings)
    return {name: value for name, value in values.items() if value not in ("", None)}


def table_of(scheme: str) -> str:
    """The name of the table under ``[stores]`` for buckets whose URIs have ``scheme``."""
    store = store_of(scheme)
    return scheme if store is None else store.schemes[0]


def resolve_ref(ref: BucketRef, settings: Settings) -> BucketRef:
    """``ref``, with endpoint, region and profile from the settings where it has none of its own.

    Directories and web servers stay unchanged. ``ais://`` is S3 under ``/s3`` of its endpoint;
    ``SpecError`` if none is configured. Resolving twice changes nothing.
    """
    store = store_of(ref.scheme)
    if store is None or not store.reach:
        return ref
    found = settings.of_bucket(ref)
    endpoint_url = ref.endpoint_url or found.endpoint_url
    if ref.scheme == "ais":
        if not endpoint_url:
            raise SpecError(
                f"bucket {ref.uri}: the address of AIStore is not set", hint=AIS_ENDPOINT_HINT
            )
        endpoint_url = endpoint_url.removesuffix(AIS_S3_PATH) + AIS_S3_PATH
    return replace(
        ref,
        endpoint_url=endpoint_url,
        region=ref.region or found.region,
        profile=ref.profile or found.profile,
    )
