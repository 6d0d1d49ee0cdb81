"""The devices and the cards behind them: what they are, how many, how full."""

from __future__ import annotations

from deploy.plan.memory import GIB
from deploy.preflight.checks.shared import all_known, is_memory, is_partition, read_or_unknown, told
from deploy.preflight.facts import Machine
from deploy.preflight.facts.gpus import IDLE_VRAM, SETTLE_S, Gpu, Gpus
from deploy.preflight.facts.limits import Device, Process
from deploy.preflight.findings import Finding, Unknown
from deploy.preflight.start import Start
from deploy.recipe import Gpu as Card

# Of memory in use: less is noise of the driver's own.
VRAM_MOVES = 256 * 10**6


def device(seen: Device, process: Process | Unknown, check: str) -> Finding:
    """A device node opens; if not, the group to add is named by number."""
    if seen.error is None:
        return Finding(check, "ok", f"{seen.path} opens for reading and writing")
    why = "the ROCm runtime opens it read-write or finds no GPU (ROCm-docker issue 116)"
    told_of = f"{seen.path}: {seen.error}"
    if isinstance(seen.gid, Unknown):
        return Finding(
            check,
            "fail",
            told_of,
            why,
            "docker: --device /dev/kfd --device /dev/dri; Kubernetes: resources.limits"
            ' {"amd.com/gpu": N} with AMD\'s device plugin; on the host: modprobe amdgpu',
        )
    if isinstance(process, Unknown):
        groups = process.reason
    else:
        groups = f"this process has groups {', '.join(map(str, sorted(process.groups)))}"
    told_of = f"{told_of}; its group is {seen.gid}, {groups}"
    if not isinstance(process, Unknown) and seen.gid in process.groups:
        return Finding(
            check,
            "fail",
            told_of,
            why,
            f"the group is there: the device cgroup or the mode refuses; docker: --device"
            f" {seen.path}, host: chmod g+rw {seen.path}",
        )
    return Finding(
        check,
        "fail",
        told_of,
        why,
        f'docker: --group-add {seen.gid} (compose: group_add: ["{seen.gid}"]);'
        f" Kubernetes: securityContext.supplementalGroups: [{seen.gid}]",
    )


def render_nodes(machine: Machine) -> list[Finding]:
    """Every GPU's render node opens; of several that do not, the first is told."""
    check = "gpu.render"
    shut = [d for d in machine.renders if d.error is not None]
    if shut:
        return [device(shut[0], machine.process, check)]
    if not machine.renders:
        return []
    return [Finding(check, "ok", f"{len(machine.renders)} render nodes open")]


def arch(machine: Machine, card: Card) -> Finding:
    """The GPUs' architecture is the profile's."""
    check = "gpu.arch"
    gpus = read_or_unknown(machine.gpus, check)
    if isinstance(gpus, Finding):
        return gpus
    wrong = {g.arch for g in gpus.found if isinstance(g.arch, str)} - {card.arch}
    if wrong:
        return Finding(
            check,
            "fail",
            f"{', '.join(sorted(wrong))}; the profile is for {card.arch}",
            "kernels and FP8 format differ: FNUZ on gfx942, OCP on gfx950 (vllm issue 17170)",
            "choose the profile of this card: leave --profile out to have it picked",
        )
    return all_known(check, gpus, [g.arch for g in gpus.found], card.arch)


def compute_units(machine: Machine, card: Card) -> Finding:
    """The CUs are the card's: an MI308X has 80, an MI300X 304, and both are gfx942."""
    check = "gpu.compute_units"
    gpus = read_or_unknown(machine.gpus, check)
    if isinstance(gpus, Finding):
        return gpus
    wrong = [
        g
        for g in gpus.found
        if isinstance(g.compute_units, int) and g.compute_units != card.compute_units
    ]
    if not wrong:
        values = [g.compute_units for g in gpus.found]
        return all_known(check, gpus, values, f"{card.compute_units} CUs each")
    seen = f"{wrong[0].compute_units} CUs; {card.name} has {card.compute_units}"
    why = "batch sizes and memory of the plan are for the card named, not for another one"
    if all(is_partition(g, card) for g in wrong):
        return Finding(
            check,
            "unknown",
            f"{seen}: this is a partition of a card{mode_of(wrong[0])}",
            f"{why}; no public run serves this model from a partition",
            "amd-smi set --gpu all --compute-partition SPX on the host, then restart the container",
        )
    return Finding(
        check,
        "fail",
        seen,
        why,
        "choose the profile of this card: leave --profile out to have it picked",
    )


def mode_of(gpu: Gpu) -> str:
    """The partition mode in words, empty when it is not known."""
    return f" in {gpu.partition} mode" if isinstance(gpu.partition, str) else ""


def memory(machine: Machine, card: Card) -> Finding:
    """Each GPU has the card's memory."""
    check = "gpu.memory"
    gpus = read_or_unknown(machine.gpus, check)
    if isinstance(gpus, Finding):
        return gpus
    wrong = [g for g in gpus.found if isinstance(g.memory, int) and not is_memory(g.memory, card)]
    if not wrong:
        values = [g.memory for g in gpus.found]
        return all_known(check, gpus, values, f"{card.memory_gb} GiB each")
    seen = f"{told(wrong[0].memory, lambda n: f'{n / GIB:.0f} GiB')}; {card.name} has"
    partitioned = all(is_partition(g, card) for g in wrong)
    return Finding(
        check,
        "unknown" if partitioned else "fail",
        f"{seen} {card.memory_gb} GiB{mode_of(wrong[0])}",
        "the plan's KV cache and batch are sized for the card's memory",
        "amd-smi set --gpu all --compute-partition SPX on the host"
        if partitioned
        else "choose the profile of this card: leave --profile out to have it picked",
    )


def count(machine: Machine, start: Start) -> Finding:
    """Enough GPUs are visible for the plan's ranks."""
    check = "gpu.count"
    gpus = read_or_unknown(machine.gpus, check)
    if isinstance(gpus, Finding):
        return gpus
    visible = len(gpus.found)
    seen = f"{visible} in the topology"
    if isinstance(machine.visible, Unknown):
        return Finding(check, "unknown", machine.visible.reason)
    if machine.visible is not None:
        visible = min(visible, machine.visible)
        seen = f"{seen}, {machine.visible} left by the environment"
    if gpus.withheld:
        seen = f"{seen}, {gpus.withheld} given to others"
    seen = f"{seen}; the plan takes {start.gpus}"
    if visible >= start.gpus:
        return Finding(check, "ok", seen)
    if gpus.unreadable:
        return Finding(check, "unknown", f"{seen}; no sense in {gpus.unreadable[0]}")
    return Finding(
        check,
        "fail",
        seen,
        "each rank of tensor, pipeline and data parallel takes a GPU",
        f"map {start.gpus} GPUs (docker: --device /dev/dri; Kubernetes: amd.com/gpu:"
        f" {start.gpus}), unset ROCR_, HIP_ and CUDA_VISIBLE_DEVICES, or add"
        f" --tensor-parallel-size {max(visible, 1)}",
    )


def partition(machine: Machine) -> Finding:
    """Cards are whole: a CPX or DPX partition shows fewer CUs and less memory."""
    check = "gpu.partition"
    gpus = read_or_unknown(machine.gpus, check)
    if isinstance(gpus, Finding):
        return gpus
    split = sorted({g.partition for g in gpus.found if isinstance(g.partition, str)} - {"SPX"})
    if split:
        return Finding(
            check,
            "unknown",
            f"compute partition {', '.join(split)}",
            "a partition is served as a GPU of its own with a part of the card's CUs and memory;"
            " no public run of this model on one",
            "amd-smi set --gpu all --compute-partition SPX on the host",
        )
    return all_known(check, gpus, [g.partition for g in gpus.found], "whole cards (SPX)")


def vram(machine: Machine, start: Start) -> Finding:
    """Memory of an earlier process has been given back."""
    check = "gpu.vram"
    gpus = read_or_unknown(machine.gpus, check)
    if isinstance(gpus, Finding):
        return gpus
    pairs = [(g.vram_used, g.vram_total) for g in gpus.found]
    known = [(u, t) for u, t in pairs if isinstance(u, int) and isinstance(t, int) and t > 0]
    if len(known) < len(pairs) and machine.library:
        known = [
            (gpu.vram_used, gpu.vram_total)
            for gpu in machine.library
            if gpu.vram_used is not None and gpu.vram_total
        ]
    if not known:
        return all_known(check, gpus, [g.vram_used for g in gpus.found], "")
    used, total = max(known, key=lambda pair: pair[0] / pair[1])
    seen = f"at most {used / 1e9:.1f} of {total / 1e9:.0f} GB in use{moving(gpus)}"
    why = "vLLM refuses to start on a card with less free memory than it is to use (PR 47536)"
    remedy = "end what holds it (amd-smi process), wait until it is given back, start again"
    wanted = vram_wanted(start, total)
    if total - used < wanted:
        told_of = f"{seen}; the plan takes {wanted / 1e9:.0f} GB"
        card = start.profile.gpu
        if wanted > total and card and any(is_partition(g, card) for g in gpus.found):
            return Finding(check, "unknown", f"{told_of}, sized for a whole card")
        return Finding(check, "fail", told_of, why, remedy)
    if used > IDLE_VRAM:
        return Finding(check, "warn", seen, f"an idle card shows about 0.3 GB; {why}", remedy)
    untold = [] if len(known) >= len(pairs) else [value for pair in pairs for value in pair]
    return all_known(check, gpus, untold, seen)


def moving(gpus: Gpus) -> str:
    """Whether memory in use still changes, in words; empty when it has settled."""
    changes = [
        gpu.vram_used - gpu.vram_before
        for gpu in gpus.found
        if isinstance(gpu.vram_used, int) and gpu.vram_before is not None
    ]
    change = max(changes, key=abs, default=0)
    if abs(change) < VRAM_MOVES:
        return ""
    way = "falling: it is being given back" if change < 0 else "rising: something loads"
    return f", {way} ({change / 1e9:+.1f} GB in {SETTLE_S} s)"


def vram_wanted(start: Start, total: int) -> float:
    """Bytes of one card that the plan takes: its share of it, or where there is none its parts."""
    asked = start.memory
    if asked is None:
        return 0.0
    return float(asked.taken) if asked.share is None else asked.share * total
