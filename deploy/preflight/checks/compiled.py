"""What was compiled before: caches, and locks that a killed build left."""

from __future__ import annotations

from collections.abc import Iterable

from deploy.preflight.caches import Cache
from deploy.preflight.facts.limits import Process
from deploy.preflight.facts.locks import Lock
from deploy.preflight.findings import Finding, Unknown
from deploy.preflight.start import Start

# AITER builds a module in 100 to 250 s: a lock this old without a known owner is nobody's.
LOCK_AGE_S = 900.0
# Ours: a start builds some dozen modules and graphs, and ends in the middle of one without room.
ROOM_LEAST = 1 << 30
ROOM_WANTED = 10 << 30


def locks(found: Iterable[Lock]) -> list[Finding]:
    """Locks of AITER's build that nobody will release."""
    judged = [lock(each) for each in found]
    return judged or [Finding("aiter.locks", "ok", "no lock in AITER's build folders")]


def lock(seen: Lock) -> Finding:
    """A lock whose owner has ended, or old without one that is known, is waited for for ever."""
    check = "aiter.locks"
    owner = "no owner" if seen.pid is None else f"owner {seen.pid} on {seen.host}"
    told_of = f"{seen.path}: {seen.age:.0f} s old, {owner}"
    why = "AITER waits for its release without a limit (aiter issue 5266)"
    remedy = f"rm '{seen.path}'"
    if seen.owner_alive:
        return Finding(check, "warn", f"{told_of}, which runs", "another process builds now", "")
    if seen.owner_alive is False:
        return Finding(check, "fail", f"{told_of}, which does not run", why, remedy)
    if seen.age < LOCK_AGE_S:
        return Finding(check, "unknown", told_of, why, f"if nothing builds there: {remedy}")
    if seen.pid is not None:
        told_of += ", which may be another container's: no build takes that long"
    return Finding(check, "fail", told_of, why, remedy)


def cache(seen: Cache, start: Start, process: Process | Unknown) -> Finding:
    """A cache may be written, and was made by this release for this architecture."""
    check = f"cache.{seen.kind}"
    card = start.profile.gpu
    owner = '"$(id -u)"' if isinstance(process, Unknown) else process.uid
    if isinstance(seen.writable, Unknown):
        return Finding(check, "unknown", seen.writable.reason)
    if not seen.writable:
        return Finding(
            check,
            "fail",
            f"{seen.path} cannot be written by this user",
            "kernels are compiled into it at the first start (tt-inference-server issue 37)",
            f"chown -R {owner} '{seen.path}' where the volume lives, and mount it read-write",
        )
    room = cache_room(seen, check)
    if room is not None:
        return room
    if not seen.filled:
        return Finding(check, "ok", f"{seen.path}: empty, will be filled by the first start")
    if seen.made_for is None or isinstance(seen.made_for, Unknown):
        return Finding(
            check,
            "unknown",
            f"{seen.path}: does not say what it was made for",
            "kernels of another vLLM or architecture are loaded as they are",
            "give a fresh volume for each vLLM release and architecture",
        )
    wanted = {"vllm": start.profile.vllm_version, "arch": card.arch if card else ""}
    differing = [f"{k} {seen.made_for.get(k)}" for k in wanted if seen.made_for.get(k) != wanted[k]]
    if not differing:
        return Finding(check, "ok", f"{seen.path}: made for {' '.join(wanted.values())}")
    # vLLM's own cache is keyed by release and configuration; the other two are not by release
    return Finding(
        check,
        "warn" if seen.kind == "vllm" else "fail",
        f"{seen.path}: made for {', '.join(differing)}; this is vllm {wanted['vllm']} on"
        f" {wanted['arch']}",
        "kernels of another vLLM or architecture are loaded as they are (vllm issue 17170)",
        f"give a fresh volume, or empty '{seen.path}'",
    )


def cache_room(seen: Cache, check: str) -> Finding | None:
    """What is to be said about the room of a cache's volume, None where there is enough."""
    if isinstance(seen.disk, Unknown):
        return Finding(check, "unknown", seen.disk.reason)
    free = seen.disk.free
    if free >= ROOM_WANTED:
        return None
    is_full = free < ROOM_LEAST
    return Finding(
        check,
        "fail" if is_full else "warn",
        f"{seen.path}: {free / 1e9:.2f} GB free, {'no' if is_full else 'little'} room to compile",
        "a build that finds no room ends the start with ENOSPC (tt-inference-server issue 37)",
        f"free {ROOM_WANTED / 1e9:.0f} GB where '{seen.path}' lives, or give a larger volume",
    )
