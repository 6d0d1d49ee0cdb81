"""What speaks against a compile proof: a line for each thing not compiled, or that does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from patches.compile import path
from patches.compile.ask import Answer, Card
from patches.compile.launch import Launch
from patches.compile.recorder import Kernel
from patches.loadcheck.card import CARDS


def answered(card: Card, chosen: Sequence[Launch], said: Answer) -> list[str]:
    """Of one card: what ended early, what Triton refused, what does not fit, and what a launch
    launched other than it names. A launch that launched nothing is among them."""
    if said.died is not None:
        return [f"{card.arch}: {said.died}"]
    stopped = {(s["launch"], s["profile"]): s["why"] for s in said.stopped}
    faults = [f"{card.arch}: {name} ({of}): {why}" for (name, of), why in stopped.items()]
    faults += [fault for kernel in said.kernels if (fault := unfit(card.arch, kernel))]
    for launch in chosen:
        for shapes in card.shapes if card.arch in launch.archs else ():
            if (launch.name, shapes.profile) not in stopped:
                launched = names(
                    kernel
                    for kernel in said.kernels
                    if kernel.launch == launch.name and shapes.profile in kernel.profiles
                )
                where = f"{card.arch}: {launch.name} ({shapes.profile})"
                named = set(launch.kernels)
                faults += [f"{where}: did not launch {n}" for n in sorted(named - launched)]
                faults += [f"{where}: launched {n} as well" for n in sorted(launched - named)]
    return faults


def unfit(arch: str, kernel: Kernel) -> str | None:
    """Why a kernel cannot run on a card of the architecture."""
    where = f"{arch}: {short(kernel.name)} ({kernel.launch})"
    if kernel.error is not None:
        return f"{where}: does not compile: {kernel.error}"
    lds, most = kernel.figures["lds"], CARDS[arch].lds_bytes
    return f"{where}: takes {lds} bytes of LDS, the card has {most}" if lds > most else None


def met(
    compiled: Mapping[str, Sequence[Kernel]],
    touched: AbstractSet[str],
    of_path: AbstractSet[str] | None,
) -> list[str]:
    """What had to be compiled and was not, by architecture.

    `touched`: what the series changes, on every architecture. `of_path`: all of the path's kernels,
    on one at least, but for those that are left out by name; None where not all was asked for.
    """
    done = {arch: names(k for k in found if k.error is None) for arch, found in compiled.items()}
    faults = [
        f"{arch}: {name}: the series changes it, and it was not compiled"
        for arch, found in done.items()
        for name in sorted(touched - found)
    ]
    if of_path is not None:
        left = of_path - set().union(*done.values()) - path.LEFT_OUT.keys()
        faults += [f"{n}: is of the path, and neither compiled nor left out" for n in sorted(left)]
        gone = path.LEFT_OUT.keys() - of_path
        faults += [f"{n}: is left out, and not of the path" for n in sorted(gone)]
    return faults


def names(found: Iterable[Kernel]) -> set[str]:
    """The short names of some kernels."""
    return {short(kernel.name) for kernel in found}


def short(name: str) -> str:
    """A kernel's name without its module; that of a class's kernel with the class."""
    parts = name.split(".")
    return ".".join(parts[-2:]) if parts[-1] == "kernel" else parts[-1]
