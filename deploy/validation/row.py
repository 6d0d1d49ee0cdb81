"""The line of the README's hardware table that evidence fills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deploy.recipe import Profile

HEADER = "| profile | cards | arch | evidence |\n|---|---|---|---|"


def row(found: Mapping[str, Any], profile: Profile) -> str:
    """The line of the README's hardware table that this evidence fills."""
    card = profile.gpu
    cards = f"{card.count} x {card.name.removeprefix('AMD Instinct ')}" if card else "none"
    arch = card.arch if card else "CPU"
    seen = "; ".join([f"{found['verdict']} on {str(found['made_at'])[:10]}", *_figures(found)])
    return f"| `{profile.name}` | {cards} | {arch} | {seen} |"


def _figures(found: Mapping[str, Any]) -> list[str]:
    smoke, accuracy = found["smoke"], found["accuracy"]
    machine = found["machine"] or {}
    told = [f"vLLM {smoke['vllm_version'] or 'unknown'}"]
    told += [f"ROCm {machine['rocm']}"] if machine.get("rocm") else []
    told += [f"driver {machine['driver']}"] if machine.get("driver") else []
    told.append(f"smoke test {smoke['outcome']}")
    if isinstance(smoke["acceptance"], dict) and smoke["acceptance"].get("rate") is not None:
        told.append(f"acceptance {smoke['acceptance']['rate']:.1%}")
    told.append(f"needles {_needles(accuracy['needles'])}")
    scores = [f"{s['name']} {s['right']} of {s['answered']}" for s in accuracy["scores"]]
    return [*told, ", ".join(scores) or "answers not judged"]


def _needles(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "not judged"
    found, asked = (sum(row[name] for row in rows) for name in ("found", "asked"))
    longest = max((row["prompt_tokens"] for row in rows if row["found"]), default=0)
    return f"{found} of {asked}" + (f", up to {longest} tokens" if found else "")
