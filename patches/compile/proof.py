"""The compile proof of one tree: what is asked of which cards, and what came of it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deploy.recipe import Profile
from patches import apply
from patches.compile import judge, kernels, overlay, path
from patches.compile.ask import Answer, Card, ask, need_compilers
from patches.compile.launches import ALL
from patches.compile.recorder import Kernel
from patches.compile.shapes import HEADS, Shapes
from patches.errors import PatchesError
from patches.series import Series
from patches.tree import find


class CardsError(PatchesError):
    """There is nothing to compile for; the message is one line."""


class UnknownPathError(PatchesError):
    """The launches are those of other releases, so nothing can be said; the message is one line."""


@dataclass(frozen=True)
class Proof:
    """What was compiled, by architecture, and what speaks against the tree; no `faults`: proven.

    `before`: what the launches that go through files of the series compile without it; empty where
    that was not asked for, or the series changes nothing. `touched`: the kernels that it changes.
    """

    tree: str
    versions: Mapping[str, str]
    profiles: Mapping[str, tuple[str, ...]]
    kernels: Mapping[str, tuple[Kernel, ...]]
    before: Mapping[str, tuple[Kernel, ...]]
    touched: tuple[str, ...]
    faults: tuple[str, ...]

    def as_data(self) -> dict[str, Any]:
        """Plain data: the fields, and ``not_covered``."""
        return {**asdict(self), "not_covered": list(path.NOT_COVERED)}

    def sentence(self) -> str:
        """One line for a reader."""
        compiled = {
            arch: judge.names(kernel for kernel in found if kernel.error is None)
            for arch, found in self.kernels.items()
        }
        counts = " and ".join(f"{len(found)} on {arch}" for arch, found in compiled.items())
        told = f"kernels compiled: {counts} with Triton {self.versions.get('triton', 'unknown')}"
        return told + (f"; faults: {len(self.faults)}" if self.faults else "")


def cards(profiles: Iterable[Profile], archs: Sequence[str]) -> tuple[Card, ...]:
    """The cards of `archs`, of CARDS, that the profiles are made for.

    Raises CardsError for an architecture without a profile, and for none.
    """
    grouped: dict[tuple[str, int], list[Shapes]] = {}
    for profile in profiles:
        if profile.gpu is not None and profile.gpu.arch in archs:
            key = profile.gpu.arch, profile.gpu.compute_units
            grouped.setdefault(key, []).append(shapes(profile))
    without = [arch for arch in archs if arch not in {known for known, _ in grouped}]
    if without or not archs:
        named = " and ".join(without) or "any card"
        raise CardsError(
            f"compile: no profile that is asked for runs on {named}; name one that does"
        )
    ordered = sorted(grouped.items(), key=lambda item: archs.index(item[0][0]))
    return tuple(Card(arch, units, tuple(found)) for (arch, units), found in ordered)


def shapes(profile: Profile) -> Shapes:
    """The shapes of a profile's plan."""
    serve, draft = profile.serve, profile.speculative or {}
    return Shapes(
        profile=profile.name,
        heads=HEADS // int(serve["tensor-parallel-size"]),
        max_requests=serve["max-num-seqs"],
        max_tokens=serve["max-num-batched-tokens"],
        context=serve["max-model-len"],
        block_size=serve["block-size"],
        steps=int(draft["num_speculative_tokens"]),
    )


def prove(
    root: Path,
    series: Series,
    asked: Sequence[Card],
    *,
    only_touched: bool = False,
    compare: bool = True,
    environ: Mapping[str, str] = os.environ,
) -> Proof:
    """Compile the tree at `root` as it is with the series applied, which changes nothing in it.

    `only_touched`: no other launches than of kernels that the series changes. `compare`: also
    compile without the series what goes through its files. Raises UnknownPathError for another
    release than `path.RELEASES`, NoCompilerError without torch or Triton, and what `apply.apply`
    raises.
    """
    tree = find(root)
    if (tree.version or "").partition("+")[0] not in path.RELEASES:
        raise UnknownPathError(
            f"compile: vLLM {tree.version or 'of unknown release'}: the kernels that it launches "
            f"are known of {' and '.join(path.RELEASES)} only"
        )
    need_compilers()
    statuses, applied = apply.contents(root, series)
    _, reverted = apply.contents(root, series, reverse=True)
    changed = {s.target for s in statuses if s.state in ("applied", "pending")}
    with tempfile.TemporaryDirectory(prefix="compile-") as folder:
        scratch = Path(folder)
        with_series = overlay.lay(tree, applied, scratch / "with")
        without = overlay.lay(tree, reverted, scratch / "without")
        touched = kernels.touched(_read(without, changed), _read(with_series, changed))
        chosen = [
            launch
            for launch in ALL
            if (changed or not launch.series)
            and (not only_touched or touched & set(launch.kernels))
        ]
        after = [ask(with_series, card, chosen, scratch, environ) for card in asked]
        compiled = _by_arch(asked, after)
        faults = [
            fault
            for card, said in zip(asked, after, strict=True)
            for fault in judge.answered(card, chosen, said)
        ]
        all_of_path = None if only_touched else kernels.of(path.sources(find(with_series)))
        faults += judge.met(compiled, touched, all_of_path)
        before: dict[str, tuple[Kernel, ...]] = {}
        if compare:
            through = {
                kernel.launch
                for found in compiled.values()
                for kernel in found
                if not changed.isdisjoint(kernel.files)
            }
            old = [launch for launch in chosen if launch.name in through and not launch.series]
            before = _by_arch(asked, [ask(without, card, old, scratch, environ) for card in asked])
    return Proof(
        tree=str(tree.package),
        versions=after[0].versions,
        profiles={arch: _profiles(asked, arch) for arch in compiled},
        kernels=compiled,
        before=before,
        touched=tuple(sorted(touched)),
        faults=tuple(faults),
    )


def _by_arch(asked: Sequence[Card], answers: Sequence[Answer]) -> dict[str, tuple[Kernel, ...]]:
    """What the cards of each architecture compiled; the same code of a launch once."""
    found: dict[str, dict[tuple[str, str, str], Kernel]] = {card.arch: {} for card in asked}
    for card, said in zip(asked, answers, strict=True):
        for kernel in said.kernels:
            found[card.arch].setdefault((kernel.launch, kernel.name, kernel.code), kernel)
    return {arch: tuple(known.values()) for arch, known in found.items()}


def _profiles(asked: Sequence[Card], arch: str) -> tuple[str, ...]:
    return tuple(s.profile for card in asked if card.arch == arch for s in card.shapes)


def _read(root: Path, paths: Iterable[str]) -> dict[str, bytes]:
    return {name: (root / name).read_bytes() for name in sorted(paths)}
