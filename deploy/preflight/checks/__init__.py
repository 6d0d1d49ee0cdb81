"""Facts in, findings out: pure functions, each with its reason, source and remedy.

Nothing here was tried on an MI-series GPU by this project; sources are public reports, AMD's and
the kernel's documentation, and vLLM 0.27.1's own code.
"""

from __future__ import annotations

from deploy.preflight.checks.asked import amdgpuhealth
from deploy.preflight.checks.checkpoint import weights
from deploy.preflight.checks.compiled import cache, locks
from deploy.preflight.checks.gpus import (
    arch,
    compute_units,
    count,
    device,
    memory,
    partition,
    render_nodes,
    vram,
)
from deploy.preflight.checks.limits import (
    allocator,
    driver,
    iommu,
    ipc_mode,
    memlock,
    memory_limit,
    numa_balancing,
    rocm,
    shm,
    stack,
)
from deploy.preflight.checks.plan import memory as plan_memory
from deploy.preflight.checks.plan import mxfp4_shard, plan_rules, port, vllm_port
from deploy.preflight.checks.profile import pick
from deploy.preflight.facts import Machine
from deploy.preflight.findings import Finding
from deploy.preflight.start import Start

__all__ = ["machine_findings", "pick", "start_findings"]


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
        *amdgpuhealth(machine),
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
        *plan_memory(start),
    ]
