"""The files, hosts and addresses that a job may use for a spec that came over the network.

A name may lead anywhere, so the address of the connection is checked, too. Sources of the ranges:
the special-purpose registries of IANA (RFC 6890 and its updates); RFC 4291 (mapped), 6052 and 8215
(NAT64), 3056 (6to4), 4380 (Teredo), 5214 (ISATAP).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict, replace

from dsort.naming.patterns import wildcard_match

_WEB_PORTS: Final = {"http": 80, "https": 443}
_OURS: Final = ("loopback", "private", "shared")
"""Kinds of addresses that an operator can allow. Addresses of the other kinds are never reached:
they belong to metadata servers of cloud machines, or to no single server."""

# ``is_global`` alone is not enough: an operator may allow some kinds and never the others, some
# metadata servers of clouds have addresses that look public, and ``is_global`` is true for
# addresses that embed a private IPv4 address. It decides only about addresses that the table does
# not list.
_KINDS: Final = tuple(
    (ip_network(network), kind)
    for network, kind in (
        ("100.100.100.200/32", "reserved"),  # metadata server of Alibaba
        ("fd00:ec2::254/128", "reserved"),  # metadata server of Amazon
        ("fd20:ce::254/128", "reserved"),  # metadata server of Google; the first match counts
        ("0.0.0.0/8", "unspecified"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared"),
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "reserved"),  # Azure's machine agent
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "reserved"),
        ("192.88.99.0/24", "reserved"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "private"),
        ("198.51.100.0/24", "reserved"),
        ("203.0.113.0/24", "reserved"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("64:ff9b:1::/48", "private"),
        ("2001:db8::/32", "reserved"),
        ("3fff::/20", "reserved"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "private"),
        ("ff00::/8", "multicast"),
    )
)
_GLOBAL_IPV6: Final = ip_network("2000::/3")
_NAT64: Final = ip_network("64:ff9b::/96")
_IPV4_COMPATIBLE: Final = ip_network("::/96")
_ISATAP: Final = (0x00005EFE, 0x02005EFE)


def address_kind(text: str) -> str:
    """The kind of the address ``text``: "" for a public one, else ``loopback``, ``private``,
    ``shared`` (carriers' NAT), ``link-local``, ``multicast``, ``unspecified`` or ``reserved``.

    An IPv6 address may embed an IPv4 address (mapped, NAT64, 6to4, Teredo, ISATAP). If the embedded
    address is not public, its kind counts. ``ValueError`` if ``text`` is no address.
    """
    address = ip_address(text.partition("%")[0])
    for network, kind in _KINDS:
        if address.version == network.version and address in network:
            return kind
    if isinstance(address, IPv4Address):
        return "" if address.is_global else "reserved"
    embedded = [*_embedded(address)]
    kinds = [kind for kind in (address_kind(str(each)) for each in embedded) if kind]
    if kinds:
        return kinds[0]
    public = bool(embedded) or (address in _GLOBAL_IPV6 and address.is_global)
    return "" if public else "reserved"


def _embedded(address: IPv6Address) -> Iterator[IPv4Address]:
    low = int(address) & 0xFFFFFFFF
    if address.ipv4_mapped is not None:
        yield address.ipv4_mapped
    if address in _NAT64 or address in _IPV4_COMPATIBLE:
        yield IPv4Address(low)
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
    if int(address) >> 32 & 0xFFFFFFFF in _ISATAP:
        yield IPv4Address(low)


class FetchPolicy(Struct, frozen=True):
    """The files, servers and addresses that may be used for a spec from the network. A plain value:
    picklable, and JSON by :meth:`to_json`.

    ``roots``: directories (absolute, symbolic links resolved). Files of buckets, and texts that a
    spec names (key maps, lists, tables), must be below a root. ``patterns``: the same with
    wildcards. ``denied``: exceptions from ``roots`` and ``patterns``, which may not be used.
    ``own``: the job's own files, which may be used even below ``denied`` directories. ``hosts``:
    web servers from which texts may come: ``host``, ``host:port`` or ``host:*``, with wildcards in
    the host; without a port, the usual port of the scheme. ``allow_private``: whether loopback,
    private and shared addresses are allowed; link-local, multicast, unspecified and reserved ones
    are always refused. ``bytes_max``: the size of a text.

    ``base``: the directory to which paths of texts are relative; "": the first root. For one job
    (:meth:`of_job`), ``files`` are the only files that may be read as texts, and ``output_roots``
    the directories below which it may write; ``roots`` are then for reading. If ``files`` or
    ``output_roots`` is None, ``roots`` apply in its place.
    """

    roots: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    allow_private: bool = False
    bytes_max: int = 256 << 20
    own: tuple[str, ...] = ()
    base: str = ""
    files: tuple[str, ...] | None = None
    output_roots: tuple[str, ...] | None = None

    @classmethod
    def of(cls, mapping: Mapping[str, Any]) -> FetchPolicy:
        """The policy from which :meth:`to_json` made ``mapping``."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, (list, tuple)) else value
            for name, value in mapping.items()
        }
        return cls(**values)

    def to_json(self) -> dict[str, Any]:
        """The policy as JSON values."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }

    def of_job(
        self, inputs: Iterable[str], outputs: Iterable[str], files: Iterable[str] | None
    ) -> FetchPolicy:
        """The policy for one job, which reads the directories ``inputs``, writes to the directories
        ``outputs``, and reads the texts ``files``. Places that this policy forbids stay
        forbidden."""
        return replace(
            self,
            roots=tuple(filter(self.allows_path, inputs)),
            patterns=(),
            output_roots=tuple(filter(self.allows_path, outputs)),
            files=None if files is None else tuple(filter(self.allows_path, files)),
            base=self.base or (self.roots[0] if self.roots else ""),
        )

    def for_outputs(self) -> FetchPolicy:
        """The policy for the buckets that the job writes to."""
        if self.output_roots is None:
            return self
        return replace(self, roots=self.output_roots)

    def allows_text(self, path: str) -> bool:
        """Whether the file ``path``, absolute and without links, may be read as a text that the
        spec names."""
        if self.files is None:
            return self.allows_path(path)
        return path in self.files and not self.denies_path(path)

    def allows_path(self, path: str) -> bool:
        """Whether the file or directory ``path``, absolute and without links, may be used."""
        if any(_is_under(path, each) for each in self.own):
            return True
        inside = any(_is_under(path, root) for root in self.roots) or any(
            wildcard_match(each, path) or wildcard_match(f"{each}/*", path)
            for each in self.patterns
        )
        return inside and not self.denies_path(path)

    def denies_path(self, path: str) -> bool:
        """Whether ``path`` is under one of the ``denied`` directories, and not one of ``own``."""
        is_own = any(_is_under(path, each) for each in self.own)
        return not is_own and any(_is_under(path, root) for root in self.denied)

    def allows_host(self, scheme: str, host: str, port: int) -> bool:
        """Whether the server ``host`` (a name or an address, without brackets) may be used."""
        usual = _WEB_PORTS.get(scheme)
        for glob in self.hosts:
            name, wanted = _host_and_port(glob)
            if wildcard_match(name, host.lower().rstrip(".")) and (
                wanted == "*" or (port == usual if not wanted else wanted == str(port))
            ):
                return True
        return False

    def refusal_of_address(self, address: str) -> str:
        """Why no connection to ``address`` is allowed; "" if connections are allowed."""
        kind = address_kind(address)
        if not kind or (self.allow_private and kind in _OURS):
            return ""
        return f"{address} is {'an' if kind == 'unspecified' else 'a'} {kind} address"


def check_host_pattern(glob: str) -> None:
    """``ValueError`` unless ``glob`` is valid in ``FetchPolicy.hosts``: a host, optionally with a
    port.

    The only wildcards of a host are ``*`` and ``?``. An IPv6 address with a port is in brackets.
    """
    if "/" in glob or "@" in glob or not glob.isprintable() or " " in glob:
        raise ValueError("is a host, and no URL")
    name, port = _host_and_port(glob)
    if not name or (glob.startswith("[") and "]" not in glob):
        raise ValueError("names no host")
    if glob.removesuffix("]").endswith(":") and glob.count(":") == 1:
        raise ValueError("has no port behind its colon")
    if port not in ("", "*") and not (port.isascii() and port.isdecimal() and int(port) < 2**16):
        raise ValueError(f"has the port {port[:20]!r}, which is no valid port")


def _is_under(path: str, directory: str) -> bool:
    return f"{path}/".startswith(f"{directory.rstrip('/')}/")


def _host_and_port(glob: str) -> tuple[str, str]:
    glob = glob.lower()
    if glob.startswith("["):
        name, _, rest = glob[1:].partition("]")
        return name, rest.removeprefix(":")
    if glob.count(":") > 1:
        return glob, ""  # an IPv6 address without brackets
    name, _, port = glob.partition(":")
    return name.rstrip("."), port
