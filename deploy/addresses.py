"""Addresses that users give."""

from __future__ import annotations

import socket
from urllib.parse import SplitResult, urlsplit

EVERYWHERE = "::"


def to_bind(host: str) -> str:
    """The address to listen on. `::` is every address of both families, and 0.0.0.0 where the
    kernel has no IPv6 and would refuse it."""
    if host == EVERYWHERE and not socket.has_dualstack_ipv6():
        return "0.0.0.0"  # noqa: S104 - as asked for
    return host


def before_port(address: str) -> str:
    """As it stands before `:PORT`: an IPv6 address in brackets."""
    return f"[{address}]" if ":" in address else address


def http_parts(url: str) -> SplitResult | None:
    """The parts of an http address whose host can be looked up, None of anything else."""
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        (parts.hostname or "").encode("idna")  # as a lookup of the name does
    except ValueError:
        return None
    return parts if named and url.isprintable() else None
