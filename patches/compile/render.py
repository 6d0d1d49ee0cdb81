"""A compile proof as text, as a page of the documents and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from patches.compile import path
from patches.compile.judge import short
from patches.compile.proof import Proof
from patches.compile.recorder import Kernel

_MEASURES = {
    "vgprs": "VGPRs",
    "agprs": "AGPRs",
    "sgprs": "SGPRs",
    "lds": "LDS",
    "vgpr_spills": "spilled VGPRs",
    "sgpr_spills": "spilled SGPRs",
}
_HEAD = ("kernel", "variants", "VGPRs", "AGPRs", "SGPRs", "LDS", "spills", "waves", "the series")

_PAGE = """\
# The path's Triton kernels, compiled for the cards

For those who ask whether a kernel fits its card.
Made by `python3 -m patches compile SITE_PACKAGES --format markdown` on vLLM {version} with Triton
{triton}; a test of `make prove` compares it. No card was there, and nothing ran
([README](README.md#the-compile-proof)).

A kernel is compiled in a variant for each launch whose constants or types differ, with the shapes
of the profiles named. Each row has the most of its variants: registers of a lane (VGPRs, with the
AGPRs in them) and of a wave (SGPRs), bytes of LDS, spilled registers (vector/scalar); and the
fewest waves that fit on a SIMD, of 8. The last column: what the series changes, of launches that go
through its files.
"""


@dataclass(frozen=True)
class Row:
    """A kernel on one architecture: the most that any of its variants takes, the fewest waves."""

    name: str
    variants: int
    most: Mapping[str, int]
    waves: float
    series: str

    def cells(self) -> tuple[str, ...]:
        """As the table's head has them."""
        spills = f"{self.most['vgpr_spills']}/{self.most['sgpr_spills']}"
        counts = (self.variants, *(self.most[name] for name in ("vgprs", "agprs", "sgprs", "lds")))
        return (self.name, *map(str, counts), spills, f"{self.waves:g}", self.series)


def rows(proof: Proof, arch: str) -> tuple[Row, ...]:
    """The kernels of one architecture by name; what does not compile is no row but a fault."""
    compiled = [kernel for kernel in proof.kernels[arch] if kernel.error is None]
    before = proof.before.get(arch)
    return tuple(
        _row(name, compiled, before, name in proof.touched)
        for name in sorted({short(kernel.name) for kernel in compiled})
    )


def as_text(proof: Proof) -> str:
    """The tables, what is not covered, and what speaks against the tree."""
    lines = [f"{proof.tree}: {proof.sentence()}"]
    for arch, profiles in proof.profiles.items():
        lines += ["", f"{arch}: {', '.join(profiles)}"]
        table = [_HEAD, *(row.cells() for row in rows(proof, arch))]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for cells in table:
            padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
            lines.append("  ".join((cells[0].ljust(widths[0]), *padded[1:-1], cells[-1])).rstrip())
    lines += ["", "not covered:", *(f"  {what}" for what in path.NOT_COVERED)]
    lines += [f"fault: {fault}" for fault in proof.faults]
    return "\n".join(lines)


def as_markdown(proof: Proof, version: str) -> str:
    """The page patches/KERNELS.md."""
    lines = [_PAGE.format(version=version, triton=proof.versions["triton"])]
    for arch, profiles in proof.profiles.items():
        lines += [f"## {arch}", "", f"Profiles: {', '.join(f'`{name}`' for name in profiles)}.", ""]
        lines += _table(_HEAD, (_ticked(row.cells()) for row in rows(proof, arch)))
    left: dict[str, list[str]] = {}
    for name, why in sorted(path.LEFT_OUT.items()):
        left.setdefault(why, []).append(f"`{name}`")
    lines += ["## Not compiled", "", "Of the same files, not launched by any profile:", ""]
    lines += _table(
        ("kernels", "because they are"), ((", ".join(n), why) for why, n in left.items())
    )
    lines += ["And of what else a server runs:", "", *(f"- {what}" for what in path.NOT_COVERED)]
    return "\n".join(lines) + "\n"


def as_data(proof: Proof) -> dict[str, Any]:
    """What provenance.json keeps: versions, profiles, a line a kernel, faults, what is left out."""
    return {
        "versions": dict(proof.versions),
        "profiles": {arch: list(names) for arch, names in proof.profiles.items()},
        "kernels": {
            arch: {row.name: _told(row) for row in rows(proof, arch)} for arch in proof.kernels
        },
        "faults": list(proof.faults),
        "not_covered": list(path.NOT_COVERED),
    }


def _told(row: Row) -> str:
    named = zip(_HEAD[2:-1], row.cells()[2:-1], strict=True)
    return ", ".join(f"{name} {value}" for name, value in named)


def _row(
    name: str, compiled: Iterable[Kernel], before: Sequence[Kernel] | None, touched: bool
) -> Row:
    after = [kernel for kernel in compiled if short(kernel.name) == name]
    return Row(
        name,
        len({kernel.code for kernel in after}),
        _most(after),
        _fewest_waves(after),
        "" if before is None else _difference(name, before, after, touched),
    )


def _difference(name: str, before: Sequence[Kernel], after: Sequence[Kernel], touched: bool) -> str:
    """What the series makes of a kernel, by the launches that were compiled without it too."""
    launches = {kernel.launch for kernel in before}
    old = [k for k in before if short(k.name) == name and k.error is None]
    new = [kernel for kernel in after if kernel.launch in launches]
    if not old or not new:
        return "new" if touched else ""
    was, now = _most(old), _most(new)
    told = [f"{named} {was[m]}" for m, named in _MEASURES.items() if was[m] != now[m]]
    if _fewest_waves(old) != _fewest_waves(new):
        told.append(f"waves {_fewest_waves(old):g}")
    if told:
        return f"before: {', '.join(told)}"
    return "changed, takes the same" if touched else "the same"


def _fewest_waves(found: Iterable[Kernel]) -> float:
    return float(min(kernel.figures["waves"] for kernel in found))


def _most(found: Iterable[Kernel]) -> dict[str, int]:
    return {name: max(kernel.figures[name] for kernel in found) for name in _MEASURES}


def _ticked(cells: Sequence[str]) -> tuple[str, ...]:
    return (f"`{cells[0]}`", *cells[1:])


def _table(head: Sequence[str], cells: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in cells:
        yield f"| {' | '.join(row)} |"
    yield ""
