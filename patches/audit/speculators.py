"""The speculator classes of a tree, and which of them drive which draft architecture."""

import re
from dataclasses import dataclass
from functools import cached_property

from patches.audit.classes import ClassModel
from patches.audit.readgraph import ReadGraph
from patches.audit.reads import read_graph
from patches.audit.registry import Registry

_FOLDERS = ("vllm/v1/worker/gpu/spec_decode", "vllm/v1/spec_decode")  # V2 runner, V1 runner
_DEFINITION = re.compile(
    r"^class (?P<name>\w+(?:Speculator|Proposer))\b\s*(?:\((?P<bases>[^)]*)\))?:", re.MULTILINE
)
_RUNNERS = "vllm/v1/worker"
_SPECULATOR_USE = re.compile(r"\b(?:speculator|drafter|proposer)\.([a-z]\w*)")
_READS_WITH = "nvidia"  # shared code is read once; tests of the platform in it stay conditions


@dataclass(frozen=True)
class Family:
    """Draft architectures that one speculative method drives, by the classes that drive them."""

    method: str
    architectures: re.Pattern[str]
    speculators: frozenset[str]


def _family(method: str, architectures: str, *speculators: str) -> Family:
    return Family(method, re.compile(architectures), frozenset(speculators))


FAMILIES = (
    _family("dflash", "XPress", "XPressSpeculator"),
    _family("dflash", "LiLiCorr", "LiLiCorrSpeculator"),
    _family("dflash", "DFlash2", "DFlash2Speculator"),
    _family("dspark", "DSpark", "DSparkSpeculator"),
    _family("dflash", "DFlash|MuseGlimmer", "DFlashSpeculator", "DFlashProposer"),
    _family("mtp", "Gemma4MTP", "Gemma4Speculator", "Gemma4Proposer"),
    _family("mtp", "Inkling", "MultiModuleMTPSpeculator"),
    _family("mtp", "Step.*MTP", "MultiModuleMTPSpeculator", "Step3p5MTPProposer"),
    _family("mtp", "MTP|Mtp", "MTPSpeculator", "EagleProposer"),
    _family("medusa", "Medusa", "MedusaProposer"),
    _family("eagle3", "Eagle3|PEagle|Peagle|Eagle3$", "EagleSpeculator", "EagleProposer"),
    _family("eagle", "Eagle", "EagleSpeculator", "EagleProposer"),
    _family(
        "extract_hidden_states",
        "ExtractHiddenStates",
        "ExtractHiddenStatesSpeculator",
        "ExtractHiddenStatesProposer",
    ),
)
"""The first family whose pattern is found in an architecture's name is its family.

Source: init_speculator() of the V2 runner, GPUModelRunner.__init__ of the V1 runner, and the
detection of the method in SpeculativeConfig.
"""

_NO_DRAFT_CLASS = frozenset(
    {
        "DraftModelProposer",
        "StandaloneARSpeculator",
        "PlainDraftModelSpeculator",
        "NgramProposer",
        "NgramProposerGPU",
        "NgramGPUSpeculator",
        "SuffixDecodingProposer",
    }
)
"""Speculators whose draft is an ordinary model, or that have none."""


def family_of(arch: str) -> Family | None:
    """Return the family of a draft architecture; None when the audit does not know it."""
    return next((family for family in FAMILIES if family.architectures.search(arch)), None)


class Speculators:
    """The speculator classes of one tree; each is parsed and read when first asked for."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._paths: dict[str, str] = {}
        self._bases: set[str] = set()
        self._graphs: dict[str, ReadGraph] = {}
        for folder in _FOLDERS:
            for path in registry.index.tree.python_files(folder):
                for match in _DEFINITION.finditer(registry.index.tree.read(path) or ""):
                    self._paths[match["name"]] = path
                    self._bases.update(re.findall(r"\w+", match["bases"] or ""))

    def known_to_no_family(self) -> list[str]:
        """Speculators that keep a draft model but that no family names: the audit skips them."""
        named = _NO_DRAFT_CLASS.union(*(family.speculators for family in FAMILIES))
        unknown = sorted(self._paths.keys() - named - self._bases)
        return [name for name in unknown if self._class(name).find_method("load_model")]

    def of(self, family: Family) -> list[ReadGraph]:
        """What the speculators of a family read; those the tree does not have are left out."""
        return [self._graph(name) for name in sorted(family.speculators & self._paths.keys())]

    def _graph(self, name: str) -> ReadGraph:
        if name not in self._graphs:
            library = self._registry.library(_READS_WITH)
            self._graphs[name] = read_graph(self._class(name), library, self._entry_points)
        return self._graphs[name]

    def _class(self, name: str) -> ClassModel:
        module = self._registry.index.at(self._paths[name])
        node = next(node for node in module.classes() if node.name == name)
        return self._registry.library(_READS_WITH).model(module, node)

    @cached_property
    def _entry_points(self) -> frozenset[str]:
        """The names the runners use on their speculator, found as text: parsing takes too long."""
        tree = self._registry.index.tree
        found: set[str] = set()
        for path in tree.python_files(_RUNNERS):
            found.update(_SPECULATOR_USE.findall(tree.read(path) or ""))
        return frozenset(found)
