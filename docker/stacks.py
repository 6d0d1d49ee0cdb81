#!/usr/bin/env python3
"""Puts py-spy into the image, from a wheel that the lock knows; the build downloads nothing.

    stacks.py WHEELS LOCK HOME

WHEELS is the folder of the build's wheels, LOCK docker/py-spy.lock, HOME gets bin/py-spy and the
wheel's own words about itself, by which the bill of materials finds it. Without a wheel of py-spy
there the image is made without it, and the build says so. Exit code 1: a wheel is not the lock's.
"""

from __future__ import annotations

import hashlib
import re
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_PROGRAM = re.compile(r"py_spy-[\w.]+\.data/scripts/py-spy")
_METADATA = re.compile(r"py_spy-[\w.]+\.dist-info/METADATA")


def main(arguments: Sequence[str]) -> int:
    """Unpack it."""
    wheels, lock, home = map(Path, arguments)
    found = sorted(wheels.glob("py_spy-*.whl"))
    if not found:
        print("stacks: no wheel of py-spy in docker/wheels/server: flights will have no stacks")
        return 0
    wheel, *more = found
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if more or digest not in _HASH.findall(lock.read_text("ascii")):
        fix = "download it anew as docker/README.md says"
        print(f"stacks: {wheel.name}: sha256 {digest} is not the lock's; {fix}", file=sys.stderr)
        return 1
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if _PROGRAM.fullmatch(name):
                target = home / "bin" / "py-spy"
            elif _METADATA.fullmatch(name):
                target = home / name
            else:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(name))
            target.chmod(0o755 if target.parent.name == "bin" else 0o644)
    print(f"stacks: {wheel.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
