"""Which profile a machine is for: the cards that are seen against the recipe's."""

from __future__ import annotations

from deploy.plan.memory import GIB
from deploy.preflight.checks.shared import is_memory, is_partition, told
from deploy.preflight.facts import Machine
from deploy.preflight.facts.gpus import Gpu
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
    named = [pair for pair in cards if name and pair[1].name.endswith(name)]
    fitting = [pair for pair in cards if fits(gpu, pair[1])] or [
        (p, card) for p, card in named if gpu.arch == card.arch and is_partition(gpu, card)
    ]
    if not fitting:
        return None, Finding("profile", "fail", f"no profile fits {describe(gpu)}", why, remedy)
    known = [pair for pair in fitting if pair in named]
    first = (known or fitting)[0][1]
    # Of several profiles of a card the one that uses the most of those that are here.
    here = sum(fits(each, first) for each in machine.gpus.found)
    if isinstance(machine.visible, int):
        here = min(here, machine.visible)
    same = [pair for pair in fitting if pair[1].name == first.name]
    chosen, _ = max(same, key=lambda pair: pair[1].count if pair[1].count <= here else 0)
    seen = f"{chosen.name} fits {describe(gpu)}"
    if known or len(same) == len(fitting):
        return chosen, Finding("profile", "ok", seen)
    alike = ", ".join(p.name for p, _ in fitting)
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
