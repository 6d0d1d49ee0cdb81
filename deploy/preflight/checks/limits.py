"""The host around the cards: memory, limits, kernel settings, driver."""

from __future__ import annotations

import math

from deploy.preflight.checks.shared import size_text, told
from deploy.preflight.facts import Machine
from deploy.preflight.findings import Finding, Unknown
from deploy.preflight.start import Start
from deploy.recipe.release import UNKNOWN

SHM_WANTED = 16 * 10**9
SHM_LEAST = 1 << 30
STACK_WANTED = 64 << 20


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
    if pinned == UNKNOWN:
        image = start.profile.vllm.image
        return Finding("host.rocm", "unknown", f"ROCm {machine.rocm}; that of {image} is not known")
    if machine.rocm.replace("-", ".").split(".")[:2] == pinned.split(".")[:2]:
        return Finding("host.rocm", "ok", f"ROCm {machine.rocm}")
    return Finding(
        "host.rocm",
        "warn",
        f"ROCm {machine.rocm}",
        f"the pinned image carries ROCm {pinned}; kernels are built for the release they meet",
        "run in the pinned image (python3 -m deploy profiles, deploy/releases)",
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
