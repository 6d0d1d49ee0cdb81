"""The weights on disk: the revision, its shards, room for what is missing."""

from __future__ import annotations

from deploy.preflight.findings import Finding, Unknown
from deploy.preflight.start import Start
from deploy.preflight.weights import Shard, Weights


def weights(start: Start) -> list[Finding]:
    """Revision, files and disk of the model."""
    found = start.weights
    if isinstance(found, Unknown):
        return [Finding("weights.revision", "unknown", found.reason)]
    return [revision(found, start), *shards(found), *disk(found, start)]


def fetch(found: Weights, *files: str) -> str:
    """The command that brings a model, or some files of it, into the cache."""
    if found.model.startswith("/"):
        return f"put the model into {found.model} again"
    words = ["HF_HUB_OFFLINE=0 hf download", found.model, *files]
    if found.revision:
        words += ["--revision", found.revision]
    words += ["--cache-dir", f"'{found.cache}'"]
    return " ".join([*words, "--force-download"] if files else words)


def revision(found: Weights, start: Start) -> Finding:
    """The pinned revision is in place."""
    check = "weights.revision"
    if found.folder:
        return Finding(check, "ok", f"{found.folder}")
    seen = f"{found.model} at {found.revision or 'main'} is not in {found.cache}"
    if found.revisions:
        seen = f"{seen}; there is {', '.join(found.revisions)}"
    is_offline = start.intent.env.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
    if is_offline or found.model.startswith("/"):
        return Finding(
            check,
            "fail",
            seen,
            "HF_HUB_OFFLINE is set, so that a start never downloads",
            f"{fetch(found)}, or mount the cache that has it and set HF_HUB_CACHE",
        )
    return Finding(check, "warn", seen, "the start downloads it first", fetch(found))


def shards(found: Weights) -> list[Finding]:
    """Every file of the index is there, as long as its header says, with its tensors."""
    check = "weights.shards"
    why = "a partial file ends the load after minutes (Qwen3-VL issue 264)"
    if found.folder is None:
        return []
    if isinstance(found.shards, Unknown):
        return [Finding(check, "fail", found.shards.reason, why, fetch(found))]
    broken = [shard for shard in found.shards if not shard.is_whole]
    if not broken:
        size = found.present_bytes / 1e9
        return [Finding(check, "ok", f"{len(found.shards)} files, {size:.1f} GB, headers agree")]
    first = f"{shard_text(broken[0])}"
    seen = f"{len(broken)} of {len(found.shards)} files are not whole: {first}"
    return [Finding(check, "fail", seen, why, fetch(found, *(s.name for s in broken[:8])))]


def shard_text(shard: Shard) -> str:
    """What is wrong with a file."""
    if shard.size is None:
        return f"{shard.name} is missing"
    if isinstance(shard.expected, Unknown):
        return shard.expected.reason
    if shard.size != shard.expected:
        return f"{shard.name} has {shard.size} bytes of {shard.expected}"
    return f"{shard.name} lacks {shard.lacking[0]}"


def disk(found: Weights, start: Start) -> list[Finding]:
    """Room for the weights that are still missing."""
    check = "weights.disk"
    total = start.profile.model.weights_bytes
    missing = (total or 0) - found.present_bytes
    is_whole = not isinstance(found.shards, Unknown) and all(s.is_whole for s in found.shards)
    if total is None or (found.folder and is_whole):
        return []
    if isinstance(found.disk, Unknown):
        return [Finding(check, "unknown", found.disk.reason)]
    seen = f"{found.disk.free / 1e9:.0f} GB free for {missing / 1e9:.0f} GB at {found.cache}"
    if found.disk.free >= missing:
        return [Finding(check, "ok", seen)]
    return [
        Finding(
            check,
            "fail",
            seen,
            f"the weights are {total / 1e9:.0f} GB",
            "free some, or set HF_HUB_CACHE to a larger disk",
        )
    ]
