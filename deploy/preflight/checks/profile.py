"""Which profile a machine is for: the cards that are seen against the recipe's."""

from __future__ import annotations

from deploy.preflight.checks.shared import GIB, is_memory, is_partition, told
from deploy.preflight.facts import Gpu, Machine
from deploy.preflight.findings import Finding, Unknown
from deploy.recipe import Gpu as Card
from deploy.recipe import Profile, Recipe


def pick(machine: Machine, recipe: Recipe) -> tuple[Profile | None, Finding]:
    """The profile that fits the GPUs, by card, else by architecture, CUs and memory."""
    why = "a plan of another card starves it or does not start"
    names = ", ".join(p.name for p in recipe.profiles.values() if not p.is_rehearsal)
    remedy = f"give --profile, or set DSPARK_PROFILE, to one of {names}"
    if isinstance(machine.gpus, Unknown) or not machine.gpus.found:
        seen = "no AMD GPU in the driver's topology"
        return None, Finding("profile", "fail", seen, why, f"{remedy}; without GPU: make rehearsal")
    gpu = machine.gpus.found[0]
    name = card_name(gpu, machine)
    cards = [(p, p.gpu) for p in recipe.profiles.values() if p.gpu]
    named = [p for p, card in cards if name and card.name.endswith(name)]
    fitting = [p for p, card in cards if fits(gpu, card)] or [
        p for p, card in cards if p in named and gpu.arch == card.arch and is_partition(gpu, card)
    ]
    if not fitting:
        return None, Finding("profile", "fail", f"no profile fits {describe(gpu)}", why, remedy)
    chosen = next((p for p in fitting if p in named), fitting[0])
    seen = f"{chosen.name} fits {describe(gpu)}"
    if chosen in named or len(fitting) == 1:
        return chosen, Finding("profile", "ok", seen)
    alike = ", ".join(p.name for p in fitting)
    return chosen, Finding("profile", "warn", seen, f"{why}; alike are {alike}", remedy)


def fits(gpu: Gpu, card: Card) -> bool:
    """Whether a GPU is the profile's card; a partition of it is not."""
    return (
        gpu.arch == card.arch
        and gpu.compute_units == card.compute_units
        and not isinstance(gpu.memory, Unknown)
        and is_memory(gpu.memory, card)
    )


def card_name(gpu: Gpu, machine: Machine) -> str | None:
    """MI355X, by PCI id, else by what AMD's library calls the card."""
    if gpu.card or not machine.library:
        return gpu.card
    words = machine.library[0].name.replace("-", " ").split()
    return next((w for w in words if w.startswith("MI") and w[2:3].isdigit()), None)


def describe(gpu: Gpu) -> str:
    """A GPU in words."""
    units = told(gpu.compute_units, lambda n: f"{n} CUs")
    size = told(gpu.memory, lambda n: f"{n / GIB:.0f} GiB")
    return f"{told(gpu.arch, str)}, {units}, {size}"
