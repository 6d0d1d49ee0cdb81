"""Releases' numbers, compared."""

from __future__ import annotations

import re


def is_at_least(version: str, release: str) -> bool:
    """Whether `version` is `release` or a later one; a pre-release of `release` is not."""
    match = re.match(r"(\d+(?:\.\d+)*)(.*)", version)
    if not match:
        return False
    seen, wanted = numbers(match[1]), numbers(release)
    is_final = not re.match(r"[.-]?(a|b|rc|dev)", match[2])
    return seen > wanted or (seen == wanted and is_final)


def is_within(version: str, since: str, until: str | None) -> bool:
    """Whether `version` is `since` or later, and before `until`; None: no release ends it."""
    return is_at_least(version, since) and not (until and is_at_least(version, until))


def numbers(release: str) -> list[int]:
    """A release's number, to compare: 0.28 and 0.28.0 are the same."""
    found = [int(number) for number in release.split(".")]
    while found and found[-1] == 0:
        found.pop()
    return found
