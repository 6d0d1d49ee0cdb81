#!/usr/bin/env python3
"""The build step of the image: apply the series to its vLLM, prove it, write the provenance.

    prove.py FILE

Every proof is made in the layer that the image keeps; what is proven, and what COMPILE_PROOF makes
of the last proof, is in docker/README.md.
Exit codes: 0 proven and FILE written, 1 not proven, 2 misused.
"""

from __future__ import annotations

import json
import os
import py_compile
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from deploy import plan, recipe
from deploy.files import write_whole
from deploy.plan.arguments import Given
from deploy.recipe import RecipeError, switches
from patches import apply, series, show, tree
from patches.audit import aiter
from patches.audit.audit import Scope
from patches.audit.audit import audit as find_gaps
from patches.audit.render import as_json, sentence
from patches.audit.tree import open_tree
from patches.compile import proof, render
from patches.compile.ask import NoCompilerError
from patches.errors import PatchesError
from patches.faults import Fault
from patches.loadcheck import check
from patches.loadcheck.draft import ARCHITECTURE
from patches.loadcheck.inside import LOADED

PACKAGES = {
    "aiter": ("amd-aiter", "aiter"),
    "triton": ("triton", "amd-triton", "pytorch-triton-rocm", "triton-rocm"),
    "torch": ("torch",),
}
"""What the image holds beside vLLM, and how its distribution may be called (aiter's setup.py)."""
ROCM = Path("/opt/rocm/.info/version")


class NotProvenError(RuntimeError):
    """The image may not be built; the message is one line."""


def main(arguments: Sequence[str]) -> int:
    """Apply, prove and write."""
    if len(arguments) != 1:
        print("prove: give one argument: the file to write the provenance to", file=sys.stderr)
        return 2
    from entrypoint import Refusal, vllm_root  # type: ignore[import-not-found]  # beside us

    try:
        mode = switches.compile_proof(os.environ)
        root = vllm_root()
        pinned = recipe.load()
        check_release(root, pinned)
        loaded = series.load()
        for status, sha256 in apply.apply(root, loaded).changed:
            print(f"prove: applied {status.patch}: {status.target} is now {sha256}")
        compile_targets(root, loaded)
        proven = show.provenance(loaded, root)
        check_carried(proven)
        proven["audit"] = audit(root, pinned)
        proven["load_check"] = load(root, loaded, pinned)
        check_faults(proven, pinned)
        proven["image"] = held()
        proven["aiter"] = pages(root, proven["image"]["aiter"])
        proven["compile"] = compile_kernels(root, pinned, loaded, mode)
        write(Path(arguments[0]), show.as_json(proven) + "\n")
    except (Refusal, RecipeError, PatchesError, NotProvenError) as e:
        print(f"prove: {e}", file=sys.stderr)
        return 1
    print(f"prove: proven; see {arguments[0]}")
    return 0


def check_release(root: Path, loaded: recipe.Recipe) -> None:
    """Refuse a vLLM of another release than the chosen one. Raises NotProvenError."""
    seen = (tree.find(root).version or "of unknown release").partition("+")[0]
    pinned = loaded.vllm.version
    if seen != pinned:
        raise NotProvenError(
            f"vLLM in the base image: is {seen}, the recipe pins {pinned}; "
            f"build on {loaded.vllm.image}, or give RELEASE={seen}"
        )


def compile_targets(root: Path, loaded: series.Series) -> None:
    """Compile what the series changed, so that no older bytecode is left beside it.

    Raises NotProvenError for a file that does not compile.
    """
    for path in sorted({target.path for patch in loaded.patches for target in patch.targets}):
        file = tree.find(root).path(path)
        if not file.exists():
            continue  # the carried check names it
        try:
            py_compile.compile(str(file), doraise=True)
        except py_compile.PyCompileError as e:
            raise NotProvenError(f"{file}: does not compile: {e.msg.strip()}") from e


def check_carried(proven: dict[str, Any]) -> None:
    """Refuse a tree that lacks a patch. Raises NotProvenError that names each."""
    lacking = [f"{s['patch']} is {s['state']}" for s in proven["tree"]["status"]]
    if not proven["tree"]["carried"]:
        raise NotProvenError(f"series: is not carried: {'; '.join(lacking)}")


def check_faults(proven: dict[str, Any], pinned: recipe.Recipe) -> None:
    """Refuse a tree that answers every profile of a card wrongly; warn where it does so of some.

    Raises NotProvenError that names each fault.
    """
    left = [Fault(**told) for told in proven["tree"]["faults"]]
    served = [(p.name, plan.intent(p, Given({}), {})) for p in pinned.profiles.values() if p.gpu]
    hit = {
        name: [fault for fault in left if fault.hits(asked.asks, asked.longest)]
        for name, asked in served
    }
    if all(hit.values()):
        named = "; ".join(f"{fault.key}: {fault.symptom}" for fault in left)
        raise NotProvenError(f"faults: are left with the series carried: {named}")
    for name, found in hit.items():
        for fault in found:
            print(f"prove: warning: not for {name}: {fault.sentence()}", flush=True)


def audit(root: Path, loaded: recipe.Recipe) -> Any:
    """The audit's own JSON for the AMD draft, as each speculative table of the recipe has it run.

    Raises NotProvenError that names each gap.
    """
    scopes = [Scope(check.PLATFORM, ARCHITECTURE, table) for table in loaded.drafts]
    reports = [find_gaps(open_tree(root), scope) for scope in scopes]
    gaps = {sentence(gap): None for r in reports for gap in r.gaps if r.fails(gap)}
    if gaps:
        raise NotProvenError(f"audit of {ARCHITECTURE} on {check.PLATFORM}: {'; '.join(gaps)}")
    return json.loads(as_json(reports))


def load(root: Path, loaded: series.Series, pinned: recipe.Recipe) -> dict[str, Any]:
    """What the load check reached with the recipe's speculative tables.

    Raises PatchesError when the draft cannot serve.
    """
    found = check.check_each(root, loaded, pinned.drafts)
    doubt = "" if found.reached(LOADED) else "warning: "
    print(f"prove: {doubt}load check: {found.sentence()}", flush=True)
    return found.as_data()


def held(rocm: Path = ROCM) -> dict[str, str]:
    """The versions of what the image holds, each UNKNOWN where it does not say."""
    found = {name: _version(distributions) for name, distributions in PACKAGES.items()}
    try:
        found["rocm"] = rocm.read_text(encoding="utf-8").split()[0]
    except (OSError, ValueError, IndexError):
        found["rocm"] = aiter.UNKNOWN
    told = ", ".join(f"{name} {version}" for name, version in found.items())
    print(f"prove: the image holds {told}", flush=True)
    return found


def _version(distributions: Sequence[str]) -> str:
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return aiter.UNKNOWN


def pages(root: Path, version: str) -> dict[str, Any]:
    """Who reads the indexer's pages, and whether AITER's fault past 2 GiB is met.

    Raises NotProvenError where it is, or may be: a version that is not known is taken for faulty.
    """
    read_by = aiter.readers(root)
    told = aiter.sentence(version, read_by)
    if aiter.is_met(version, read_by) is not False:
        raise NotProvenError(
            f"{told}; apply patch 0004 or take AITER {aiter.RIGHT} ({aiter.SOURCE})"
        )
    print(f"prove: {told}", flush=True)
    return {"told": told, "source": aiter.SOURCE, "read_by": read_by}


def compile_kernels(
    root: Path, pinned: recipe.Recipe, loaded: series.Series, mode: str
) -> dict[str, Any]:
    """The compile proof, as `mode` asks for it: ``verdict``, ``told`` and, if made, the figures.

    The verdict is proven, unknown, off, or with `mode` warn not proven. Raises NotProvenError.
    """
    if mode == "off":
        return _verdict("off", "left out by COMPILE_PROOF=off")
    served = [profile for profile in pinned.profiles.values() if profile.gpu is not None]
    archs = tuple(dict.fromkeys(p.gpu.arch for p in served if p.gpu is not None))
    try:
        found = proof.prove(root, loaded, proof.cards(served, archs), compare=False)
    except (proof.UnknownPathError, NoCompilerError) as e:
        return _verdict("unknown", str(e))
    if not found.faults:
        return _verdict("proven", found.sentence(), render.as_data(found))
    if mode == "on":
        raise NotProvenError(
            f"{found.sentence()}, the first: {found.faults[0]}; to take the image all the same, "
            "build with COMPILE_PROOF=warn"
        )
    return _verdict("not proven", found.sentence(), render.as_data(found))


def _verdict(verdict: str, told: str, made: Mapping[str, Any] | None = None) -> dict[str, Any]:
    doubt = "" if verdict == "proven" else "warning: "
    print(f"prove: {doubt}compile proof: {verdict}: {told}", flush=True)
    return {"verdict": verdict, "told": told, **(made or {})}


def write(file: Path, text: str) -> None:
    """The provenance, whole or not at all. Raises NotProvenError where it cannot be written."""
    try:
        write_whole(file, text)
    except OSError as e:
        raise NotProvenError(f"{file}: {e.strerror}; name a file that can be written") from e


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
