"""Facts in, findings out: pure functions, each with its reason, source and remedy.

Nothing here was tried on an MI-series GPU by this project; sources are public reports, AMD's and
the kernel's documentation, and vLLM 0.27.1's own code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from deploy import rules
from deploy.preflight.facts import (
    IDLE_VRAM,
    SETTLE_S,
    Cache,
    Device,
    Gpu,
    Gpus,
    Lock,
    Machine,
    Port,
    Process,
)
from deploy.preflight.findings import Finding, Unknown
from deploy.preflight.start import Start
from deploy.preflight.weights import Shard, Weights
from deploy.recipe import Gpu as Card
from deploy.recipe import Profile, Recipe

GIB = 1 << 30

# 288 GiB cards show 287.7 to 288.0; the nearest other size is a quarter away.
MEMORY_TOLERANCE = 0.05

# Of memory in use: less is noise of the driver's own.
VRAM_MOVES = 256 * 10**6

SHM_WANTED = 16 * 10**9
SHM_LEAST = 1 << 30
STACK_WANTED = 64 << 20

# AITER builds a module in 100 to 250 s: a lock this old without an owner is nobody's.
LOCK_AGE_S = 900.0

# vLLM's --gpu-memory-utilization when it is not given (0.27.1, config/cache.py).
DEFAULT_UTILIZATION = 0.92

# The MXFP4 kernels of vLLM on ROCm to 0.27.1 take shards in these steps (PR 51473).
MXFP4_STEP = 256


def machine_findings(machine: Machine, start: Start) -> list[Finding]:
    """Every check of a profile that needs a GPU."""
    card = start.profile.gpu
    if card is None:
        return []
    return [
        device(machine.kfd, machine.process, "gpu.kfd"),
        *render_nodes(machine),
        arch(machine, card),
        compute_units(machine, card),
        memory(machine, card),
        count(machine, start),
        partition(machine),
        vram(machine, start),
        shm(machine, start),
        memory_limit(machine),
        memlock(machine),
        stack(machine),
        numa_balancing(machine),
        iommu(machine),
        driver(machine),
        rocm(machine, start),
        ipc_mode(start),
        allocator(start),
        *locks(machine.locks),
        *(cache(c, start, machine.process) for c in start.caches),
    ]


def start_findings(start: Start) -> list[Finding]:
    """Every check that also holds for the rehearsal."""
    return [
        *weights(start),
        vllm_port(start.environ),
        *(port(p) for p in start.ports),
        *plan_rules(start),
        *mxfp4_shard(start),
    ]


# --- which profile -----------------------------------------------------------------------------


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


def is_memory(seen: int, card: Card) -> bool:
    """Whether bytes seen are the card's, whose data sheet counts in 2^30."""
    return abs(seen / GIB - card.memory_gb) <= MEMORY_TOLERANCE * card.memory_gb


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


# --- devices and GPUs --------------------------------------------------------------------------


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


def is_partition(gpu: Gpu, card: Card) -> bool:
    """Whether a GPU is a part of such a card: the mode says so, or the units divide evenly."""
    if isinstance(gpu.partition, str):
        return gpu.partition != "SPX"
    units = gpu.compute_units
    is_one_die = gpu.dies == 1
    return is_one_die and isinstance(units, int) and units > 0 and card.compute_units % units == 0


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
    """Bytes of one card that the plan takes: its share, or its part of the weights and a fixed KV.

    vLLM does not look at the share when the size of the KV cache is given (0.27.1,
    config/cache.py).
    """
    serve = start.intent.serve
    fixed = serve.get("kv-cache-memory-bytes")
    if isinstance(fixed, int):
        return fixed + (start.profile.model.weights_bytes or 0) / start.gpus
    share = serve.get("gpu-memory-utilization", DEFAULT_UTILIZATION)
    return float(share) * total if isinstance(share, int | float) else 0.0


# --- the host ----------------------------------------------------------------------------------


def shm(machine: Machine, start: Start) -> Finding:
    """Shared memory for RCCL and vLLM's message queue."""
    check = "host.shm"
    if isinstance(machine.shm, Unknown):
        return Finding(check, "unknown", machine.shm.reason)
    total = machine.shm.total
    seen = f"{total / 1e9:.1f} GB"
    if total >= SHM_WANTED:
        return Finding(check, "ok", seen)
    return Finding(
        check,
        "fail" if total < SHM_LEAST and start.gpus > 1 else "warn",
        seen,
        "RCCL and the workers' queue live there; Docker gives 64 MB (production-stack issue 276)",
        "docker: --ipc=host or --shm-size 16g; Kubernetes: an emptyDir with medium: Memory and"
        " sizeLimit: 16Gi at /dev/shm",
    )


def memory_limit(machine: Machine) -> Finding:
    """The container's memory limit leaves room for shared memory, which counts toward it."""
    check = "host.memory_limit"
    limit = machine.memory_limit
    if isinstance(limit, Unknown):
        return Finding(check, "unknown", limit.reason)
    if math.isinf(limit) or limit > SHM_WANTED:
        return Finding(check, "ok", size_text(limit))
    return Finding(
        check,
        "warn",
        size_text(limit),
        "pages of /dev/shm are charged to the container (the kernel's cgroup-v2 documentation)",
        "docker: leave --memory out; Kubernetes: raise resources.limits.memory above 16Gi",
    )


def memlock(machine: Machine) -> Finding:
    """Locked memory is unlimited."""
    check = "host.memlock"
    if isinstance(machine.memlock, Unknown):
        return Finding(check, "unknown", machine.memlock.reason)
    if math.isinf(machine.memlock):
        return Finding(check, "ok", "unlimited")
    return Finding(
        check,
        "warn",
        f"limited to {machine.memlock:.0f} bytes",
        "the runtime and RCCL pin host memory (AMD's container guide asks for no limit)",
        "docker: --ulimit memlock=-1; systemd and Kubernetes: LimitMEMLOCK=infinity of the runtime",
    )


def stack(machine: Machine) -> Finding:
    """The stack is at least 64 MiB."""
    check = "host.stack"
    if isinstance(machine.stack, Unknown):
        return Finding(check, "unknown", machine.stack.reason)
    if machine.stack >= STACK_WANTED:
        return Finding(check, "ok", told(machine.stack, size_text))
    return Finding(
        check,
        "warn",
        size_text(machine.stack),
        "compilers and worker threads overflow smaller ones; public ROCm recipes set 64 MiB",
        f"docker: --ulimit stack={STACK_WANTED}",
    )


def numa_balancing(machine: Machine) -> Finding:
    """Automatic NUMA balancing is off."""
    check = "host.numa_balancing"
    value = machine.numa_balancing
    if isinstance(value, Unknown):
        return Finding(check, "unknown", value.reason)
    if value == 0:
        return Finding(check, "ok", "off")
    return Finding(
        check,
        "warn",
        f"kernel.numa_balancing is {value}",
        "the kernel moves pages under the GPU, which stalls it (AMD's MI300X tuning guide)",
        "sysctl -w kernel.numa_balancing=0 on the host",
    )


def iommu(machine: Machine) -> Finding:
    """The IOMMU passes DMA through, or there is none."""
    check = "host.iommu"
    words = machine.kernel_words
    if isinstance(words, Unknown):
        return Finding(check, "unknown", words.reason)
    given = [w for w in words if w.partition("=")[0] in ("iommu", "amd_iommu", "intel_iommu")]
    if any(w in ("iommu=pt", "amd_iommu=off", "intel_iommu=off", "iommu=off") for w in given):
        return Finding(check, "ok", " ".join(given))
    if machine.has_iommu is False:
        return Finding(check, "ok", "no IOMMU is active")
    return Finding(
        check,
        "warn",
        f"the kernel command line has {' '.join(given) or 'no iommu setting'}",
        "without iommu=pt peer transfers hang or crawl (rccl issue 2188)",
        "add iommu=pt to the host's kernel command line (GRUB_CMDLINE_LINUX) and reboot",
    )


def driver(machine: Machine) -> Finding:
    """The amdgpu driver is loaded; its version is told."""
    if isinstance(machine.driver, Unknown):
        return Finding(
            "host.driver",
            "unknown",
            machine.driver.reason,
            "the driver in the kernel's tree has no version of its own; AMD's package has",
        )
    return Finding("host.driver", "ok", f"amdgpu {machine.driver}")


def rocm(machine: Machine, start: Start) -> Finding:
    """The runtime is of the pinned image's minor release of ROCm."""
    if isinstance(machine.rocm, Unknown):
        return Finding("host.rocm", "unknown", machine.rocm.reason)
    pinned = start.profile.vllm.rocm
    if machine.rocm.replace("-", ".").split(".")[:2] == pinned.split(".")[:2]:
        return Finding("host.rocm", "ok", f"ROCm {machine.rocm}")
    return Finding(
        "host.rocm",
        "warn",
        f"ROCm {machine.rocm}",
        f"the pinned image carries ROCm {pinned}; kernels are built for the release they meet",
        "run in the pinned image (python -m deploy profiles, deploy/recipe.toml [vllm])",
    )


def ipc_mode(start: Start) -> Finding:
    """The way ranks share GPU memory is the one vLLM's image sets."""
    check, name = "env.ipc_mode", "HSA_ENABLE_IPC_MODE_LEGACY"
    value = start.environ.get(name)
    if start.gpus == 1:
        return Finding(check, "ok", f"{name} does not matter to one GPU")
    if value == "1":
        return Finding(check, "ok", f"{name}=1, as in vLLM's ROCm image")
    return Finding(
        check,
        "warn",
        f"{name} is {'not set' if value is None else value}",
        "vLLM's ROCm image sets 1 for GPU memory shared between ranks (rocm-systems issue 2209,"
        " which also reports cards that want 0)",
        f"set {name}=1; where hipIpcGetMemHandle then fails, 0",
    )


def allocator(start: Start) -> Finding:
    """PyTorch's expandable segments and shared GPU memory exclude each other."""
    check = "env.allocator"
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    bad = [n for n in names if "expandable_segments:true" in start.environ.get(n, "").lower()]
    if start.gpus == 1 or not bad:
        return Finding(check, "ok", "no expandable segments between ranks")
    return Finding(
        check,
        "warn",
        f"{bad[0]}={start.environ[bad[0]]}",
        "hipIpcGetMemHandle then fails on MI300X with two ranks or more (aiter issue 4174)",
        f"unset {bad[0]}",
    )


# --- what was compiled before ------------------------------------------------------------------


def locks(found: Iterable[Lock]) -> list[Finding]:
    """Locks of AITER's build that nobody will release."""
    judged = [lock(each) for each in found]
    return judged or [Finding("aiter.locks", "ok", "no lock in AITER's build folders")]


def lock(seen: Lock) -> Finding:
    """A lock with a dead owner, or old without one, is waited for without end."""
    check = "aiter.locks"
    owner = "no owner" if seen.pid is None else f"owner {seen.pid} on {seen.host}"
    told_of = f"{seen.path}: {seen.age:.0f} s old, {owner}"
    why = "AITER waits for its release without a limit (aiter issue 5266)"
    remedy = f"rm '{seen.path}'"
    if seen.owner_alive:
        return Finding(check, "warn", f"{told_of}, which runs", "another process builds now", "")
    if seen.owner_alive is False:
        return Finding(check, "fail", f"{told_of}, which does not run", why, remedy)
    if seen.pid is not None or seen.age < LOCK_AGE_S:
        return Finding(check, "unknown", told_of, why, f"if nothing builds there: {remedy}")
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


# --- weights -----------------------------------------------------------------------------------


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


# --- environment, ports, plan ------------------------------------------------------------------


def vllm_port(environ: Mapping[str, str]) -> Finding:
    """Kubernetes writes NAME_PORT=tcp://... for a Service called `vllm`; vLLM reads VLLM_PORT."""
    check = "env.vllm_port"
    value = environ.get("VLLM_PORT", "0")
    if value.isascii() and value.isdigit():
        return Finding(check, "ok", "VLLM_PORT is not shadowed")
    return Finding(
        check,
        "fail",
        f"VLLM_PORT={value}",
        "vLLM reads it as a port and refuses (vLLM 0.27.1, envs.py); Kubernetes sets it for a"
        " Service called vllm",
        "rename the Service, or set enableServiceLinks: false in the pod; else unset it",
    )


def port(seen: Port) -> Finding:
    """The ports may be listened on."""
    check = f"net.{seen.role}_port"
    if isinstance(seen.free, Unknown):
        return Finding(check, "unknown", seen.free.reason)
    if seen.free:
        return Finding(check, "ok", f"{seen.number} is free")
    if seen.role == "health":
        return Finding(
            check,
            "warn",
            f"{seen.number} is taken",
            "by the health service already, or by a stranger it cannot start beside",
            f"see who listens: ss -ltnp 'sport = :{seen.number}'",
        )
    return Finding(
        check,
        "fail",
        f"{seen.number} is taken",
        "the server binds it before it loads, and ends",
        f"end who listens (ss -ltnp 'sport = :{seen.number}'), or add --port N",
    )


def plan_rules(start: Start) -> list[Finding]:
    """The rules of deploy.rules, each with its source."""
    if start.refusal:
        what, _, fix = start.refusal.partition("; ")
        return [Finding("plan.flags", "fail", what, "vLLM's parser would refuse it", fix)]
    spoken = [(rule, f) for rule in rules.RULES if (f := rule(start.intent)) is not None]
    if not spoken:
        return [Finding("plan.rules", "ok", f"{len(rules.RULES)} rules hold")]
    return [
        rule_finding(found, (rule.__doc__ or "").strip().splitlines()[0]) for rule, found in spoken
    ]


def rule_finding(found: rules.Finding, why: str) -> Finding:
    """A plan rule's answer; its message is `what was seen; the fix`."""
    seen, _, remedy = found.message.partition("; ")
    return Finding(f"plan.{found.rule}", "fail" if found.fatal else "warn", seen, why, remedy)


def mxfp4_shard(start: Start) -> list[Finding]:
    """Each rank's share of an expert is rounded up to 256 on ROCm to 0.27.1."""
    check = "plan.mxfp4_shard"
    width, ranks = start.intent.model.moe_intermediate_size, start.size("tensor-parallel-size")
    if start.profile.is_rehearsal or width is None:
        return []
    if start.intent.serve.get("enable-expert-parallel"):
        return [Finding(check, "ok", "experts stay whole with expert parallel")]
    why = f"vLLM to 0.27.1 pads each rank's MXFP4 shard to {MXFP4_STEP} on ROCm (PR 51473)"
    if width % ranks:
        seen = f"moe_intermediate_size {width} does not divide by {ranks} ranks"
        return [Finding(check, "fail", seen, why, "choose a tensor-parallel-size that divides it")]
    shard = width // ranks
    padded = -(-shard // MXFP4_STEP) * MXFP4_STEP
    seen = f"moe_intermediate_size {width} over {ranks} ranks is {shard}"
    if padded == shard:
        return [Finding(check, "ok", f"{seen}, a multiple of {MXFP4_STEP}")]
    return [
        Finding(
            check,
            "warn",
            f"{seen}, padded to {padded}: {padded / shard - 1:.0%} more memory for experts",
            why,
            f"--tensor-parallel-size {fitting_ranks(width, ranks)}, or --enable-expert-parallel",
        )
    ]


def fitting_ranks(width: int, ranks: int) -> int:
    """The most ranks up to those asked for whose shards need no padding."""
    fitting = [n for n in range(1, ranks) if width % (n * MXFP4_STEP) == 0]
    return max(fitting, default=1)


# --- shared ------------------------------------------------------------------------------------


def read_or_unknown(gpus: Gpus | Unknown, check: str) -> Gpus | Finding:
    """The topology, or the finding that there is none to judge."""
    if isinstance(gpus, Unknown):
        return Finding(check, "unknown", gpus.reason)
    if not gpus.found:
        seen = gpus.unreadable[0] if gpus.unreadable else "no GPU in the driver's topology"
        return Finding(check, "unknown", seen)
    return gpus


def all_known(check: str, gpus: Gpus, values: Iterable[object], seen: str) -> Finding:
    """OK when each GPU's value is known, unknown with the first reason otherwise."""
    for value in values:
        if isinstance(value, Unknown):
            return Finding(check, "unknown", value.reason)
    if gpus.unreadable:
        return Finding(check, "unknown", f"{gpus.unreadable[0]}: makes no sense")
    return Finding(check, "ok", seen)


def told(value: object, show: Callable[..., str]) -> str:
    """A fact in words, or a question mark."""
    return "?" if isinstance(value, Unknown) else show(value)


def size_text(size: float) -> str:
    """Bytes in words."""
    return "unlimited" if math.isinf(size) else f"{size / (1 << 20):.0f} MiB"
