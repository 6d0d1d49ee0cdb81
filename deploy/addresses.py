"""Addresses that users give."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit


def http_parts(url: str) -> SplitResult | None:
    """The parts of an http address whose host can be looked up, None of anything else."""
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        (parts.hostname or "").encode("idna")  # as a lookup of the name does
    except ValueError:
        return None
    return parts if named and url.isprintable() else None
