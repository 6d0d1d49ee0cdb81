"""What a compiled kernel takes of a compute unit, read from its assembly's metadata."""

from __future__ import annotations

import re
from dataclasses import dataclass

_METADATA = {
    "vgprs": "vgpr_count",
    "agprs": "agpr_count",
    "sgprs": "sgpr_count",
    "vgpr_spills": "vgpr_spill_count",
    "sgpr_spills": "sgpr_spill_count",
    "static_lds": "group_segment_fixed_size",
}
"""By the names of LLVM's AMDGPU code object metadata, version 5 (AMDGPUUsage)."""

# Of CDNA3 and CDNA4 (LLVM, AMDGPUUsage and GCNSubtarget): a SIMD holds 8 waves and, a lane, 512
# vector registers given out in eights, those for matrices (AGPRs) among them; 800 scalar ones in
# sixteens, of which each wave gets 16 more for ROCm's trap handler. A compute unit has 4 SIMDs.
_SIMDS = 4
_MOST_WAVES = 8
_VGPRS, _VGPR_GRANULE = 512, 8
_SGPRS, _SGPR_GRANULE, _TRAP_SGPRS = 800, 16, 16


class FiguresError(ValueError):
    """The assembly does not say what a kernel takes; the message is one line."""


@dataclass(frozen=True)
class Figures:
    """Registers a lane or wave, `vgprs` with the AGPRs in it; spills in registers; LDS in bytes.

    `waves`: how many fit on one SIMD, by registers and LDS; below 1 a SIMD stands still at times.
    """

    vgprs: int
    agprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    lds: int
    warps: int
    waves: float


def read(assembly: str, shared: int, warps: int, lds_bytes: int) -> Figures:
    """The figures of a kernel whose launch asks for `shared` bytes of LDS and `warps` waves.

    `lds_bytes` is what the card's compute unit has. Raises FiguresError where a count is missing.
    """
    counts = {name: _count(assembly, label) for name, label in _METADATA.items()}
    lds = max(shared, counts.pop("static_lds"))
    waves = min(by_registers(counts["vgprs"], counts["sgprs"]), by_lds(lds, warps, lds_bytes))
    return Figures(**counts, lds=lds, warps=warps, waves=waves)


def by_registers(vgprs: int, sgprs: int) -> int:
    """How many waves of a SIMD its registers allow."""
    return min(
        _MOST_WAVES,
        _VGPRS // _whole(vgprs, _VGPR_GRANULE),
        _SGPRS // _whole(sgprs + _TRAP_SGPRS, _SGPR_GRANULE),
    )


def by_lds(lds: int, warps: int, lds_bytes: int) -> float:
    """How many waves of a SIMD the LDS of its compute unit allows, spread over the SIMDs."""
    if not lds:
        return _MOST_WAVES
    return min(_MOST_WAVES, lds_bytes // lds * warps / _SIMDS)


def _whole(count: int, granule: int) -> int:
    return max(granule, -(-count // granule) * granule)


def _count(assembly: str, label: str) -> int:
    found = re.search(rf"^\s*(?:- )?\.{label}:\s*(\d+)\s*$", assembly, re.MULTILINE)
    if found is None:
        raise FiguresError(f".{label}: is not in the kernel's assembly")
    return int(found[1])
