"""The series' provenance, alone, beside what a tree carries of it, and as an image was built."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from patches import apply, faults
from patches.errors import PatchesError
from patches.patch import Patch
from patches.series import Series
from patches.tree import find

BUILT = Path(__file__).resolve().parent.parent / "provenance.json"
"""What docker/prove.py wrote when an image was built; a checkout has none."""


PROVEN = ("audit", "load_check", "image", "aiter", "compile")


def provenance(series: Series, root: Path | None = None) -> dict[str, Any]:
    """Return what is known of the series as plain data; with `root`, also of that tree.

    Keys: ``series`` (sha256 over all patches, and each patch with its origin, hashes and when to
    remove it) and, with `root`, ``tree`` (package folder, vLLM version, ``carried``, the status of
    every file, and the known faults that are left). Raises what `patches.apply.status` raises.
    """
    data: dict[str, Any] = {
        "series": {
            "sha256": series.sha256,
            "patches": [_patch(patch) for patch in series.patches],
        }
    }
    if root is not None:
        statuses = apply.status(root, series)
        tree = find(root)
        data["tree"] = {
            "package": str(tree.package),
            "vllm_version": tree.version,
            "carried": all(status.carried for status in statuses),
            "status": [asdict(status) for status in statuses],
            "faults": [asdict(fault) for fault in faults.left(tree.version, statuses)],
        }
    return data


def built(file: Path = BUILT) -> dict[str, Any] | None:
    """Return what the build of this image proved, a key for each of PROVEN; None elsewhere.

    Raises `PatchesError`, one line, for a file that is not the one the build wrote.
    """
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        return {name: data[name] for name in PROVEN}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise PatchesError(f"{file}: is not what the build wrote: {error!r}") from error


def as_json(data: dict[str, Any]) -> str:
    """The provenance as JSON, keys in the order above."""
    return json.dumps(data, indent=2)


def as_text(data: dict[str, Any]) -> str:
    """The provenance as lines for a reader."""
    lines = [f"series sha256 {data['series']['sha256']}"]
    for patch in data["series"]["patches"]:
        lines += _patch_lines(patch)
    if "tree" in data:
        lines += _tree_lines(data["tree"])
    if "build" in data:
        lines += _build_lines(data["build"])
    return "\n".join(lines)


def _patch(patch: Patch) -> dict[str, Any]:
    return {
        "name": patch.name,
        "sha256": patch.sha256,
        "description": patch.description.splitlines()[0],
        "origin": patch.origin,
        "upstream_since": patch.upstream_since,
        "upstream_url": patch.upstream_url,
        "remove_when": patch.remove_when,
        "last_update": patch.last_update,
        "targets": [
            {
                "path": target.path,
                "pairs": [asdict(pair) for pair in target.pairs],
                "upstream_probe": None if target.probe is None else str(target.probe),
            }
            for target in patch.targets
        ],
    }


def _patch_lines(patch: dict[str, Any]) -> list[str]:
    lines = [
        "",
        patch["name"],
        f"  {patch['description']}",
        f"  sha256       {patch['sha256']}",
        f"  origin       {patch['origin']}",
        f"  remove when  {patch['remove_when']}",
        f"  last update  {patch['last_update']}",
    ]
    for target in patch["targets"]:
        lines.append(f"  changes      {target['path']}")
        for pair in target["pairs"]:
            lines.append(f"    before     {pair['before']}  vLLM {', '.join(pair['releases'])}")
            lines.append(f"    after      {pair['after']}")
    return lines


def _tree_lines(tree: dict[str, Any]) -> list[str]:
    version = tree["vllm_version"] or "of unknown version"
    lines = ["", f"{tree['package']}: vLLM {version}"]
    lines += [f"  {item['state']:<9}{item['patch']}: {item['detail']}" for item in tree["status"]]
    lines += [f"  still wrong: {item['key']}: {item['symptom']}" for item in tree["faults"]]
    lines.append(f"  the series is {'carried' if tree['carried'] else 'NOT carried'}")
    return lines


def _build_lines(build: dict[str, Any]) -> list[str]:
    lines = ["", "when this image was built"]
    for audited in build["audit"]["trees"]:
        gaps = ", ".join(gap["attribute"] for gap in audited["gaps"]) or "none"
        lines.append(f"  audit      {audited['arch']} on {audited['platform']}: gaps: {gaps}")
    loaded = build["load_check"]
    count = f"{len(loaded['read'])} of {len(loaded['required'])} attributes read"
    lines.append(f"  load check {loaded['class_name']}: {loaded['level']}, {count}")
    if loaded["stopped_by"]:
        lines.append(f"             no further: {loaded['stopped_by']}")
    held = ", ".join(f"{name} {version}" for name, version in build["image"].items())
    lines.append(f"  the image  holds {held}")
    lines.append(f"  {build['aiter']['told']}")
    lines.append(f"  kernels    {build['compile']['verdict']}: {build['compile']['told']}")
    return lines
