"""Caches that one function writes and others read: whether both lay them out the same way.

That two functions share a cache cannot be told from the sources: it passes through forward contexts
and custom ops. So the pairs are a table. What each side does with the cache is read from the tree.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from patches.audit.calls import Bodies, Function
from patches.audit.gap import Gap, Severity
from patches.audit.imports import PackageImports
from patches.audit.kernels import Layout, accesses
from patches.audit.launches import Access, Facts, Launches
from patches.audit.modules import FUNCTIONS
from patches.audit.registry import Entry, Registry


@dataclass(frozen=True)
class Place:
    """A function of a file, and which of its parameters is the cache."""

    path: str
    function: str
    cache: str

    def __str__(self) -> str:
        return f"{self.function}() of {self.path}"


@dataclass(frozen=True)
class SharedCache:
    """A cache of the models in `package` on `platform`: who writes it and who reads it, and when.

    `writer` is a kernel. `reader` is the function that reads, in every one of `phases` and on every
    one of `cards`, which are told apart by values that hold there. `known` are values that hold
    everywhere. `foreign` are the ops outside the tree that read, with the keyword that says that
    they read tiles.
    """

    name: str
    package: str
    platform: str
    writer: Place
    reader: Place
    phases: Mapping[str, Mapping[str, object]]
    cards: Mapping[str, Mapping[str, object]]
    known: Mapping[str, object]
    foreign: Mapping[str, str]


CACHES = (
    SharedCache(
        name="indexer keys",
        package="vllm.models.deepseek_v4",
        platform="amd",
        writer=Place(
            "vllm/models/deepseek_v4/common/ops/fused_compress_quant_cache.py",
            "_fused_kv_compress_norm_rope_insert_indexer_attn",
            "k_cache_ptr",
        ),
        reader=Place(
            "vllm/v1/attention/ops/rocm_aiter_mla_sparse.py",
            "rocm_aiter_sparse_attn_indexer",
            "kv_cache",
        ),
        phases={
            "prefill": {"has_prefill": True, "has_decode": False},
            "decode": {"has_prefill": False, "has_decode": True},
        },
        cards={
            "gfx942": {"_ON_GFX942": True, "_ON_GFX950": False},
            "gfx950": {"_ON_GFX942": False, "_ON_GFX950": True},
        },
        # V4's indexer compresses four tokens into one, its compressor has written them already, and
        # a page holds 64 of them.
        known={"compress_ratio": 4, "skip_k_cache_insert": True, "block_size": 64},
        foreign={"deepgemm_fp8_paged_mqa_logits": "Preshuffle"},
    ),
)


class LayoutFinder:
    """Compares the two sides of each cache of `CACHES` in one tree."""

    def __init__(self, registry: Registry, caches: tuple[SharedCache, ...] = CACHES) -> None:
        self._registry = registry
        self._caches = caches
        self._bodies = Bodies()
        self._imports = PackageImports(registry.index)
        self._written: dict[str, Layout | str] = {}
        self._read: dict[tuple[str, str, str], list[Access] | str] = {}

    def gaps(self, entry: Entry, only_on: str | None = None) -> Iterator[Gap]:
        """Yield where the model of `entry` reads a cache by another layout than it is written.

        `only_on` leaves out all platforms but that one.
        """
        for cache in self._caches:
            if cache.package != entry.module or only_on not in (None, cache.platform):
                continue
            if self._leads_to_writer(entry, cache):
                yield from self._compared(entry, cache)
            elif not any(self._leads_to_writer(other, cache) for other in self._package(cache)):
                yield _untold(entry, cache, f"no class of {cache.package} uses {cache.writer.path}")

    def readers(self, cache: SharedCache) -> dict[str, tuple[str, ...]]:
        """What reads a cache, by phase and card: kernels, and ops outside the tree. Nothing where
        the sources do not tell."""
        found: dict[str, tuple[str, ...]] = {}
        for phase in cache.phases:
            for card in cache.cards:
                reads = self._reads(cache, phase, card)
                ops = () if isinstance(reads, str) else dict.fromkeys(read.op for read in reads)
                found[f"{phase} on {card}"] = tuple(ops)
        return found

    def _package(self, cache: SharedCache) -> Iterator[Entry]:
        """The architectures whose classes are in the cache's package."""
        for entry in (*self._registry.drafts.values(), *self._registry.targets.values()):
            if entry.module == cache.package:
                yield entry

    def _leads_to_writer(self, entry: Entry, cache: SharedCache) -> bool:
        """Whether the file of the class that serves `entry` imports the writer's, if not itself."""
        model = self._registry.implementation(entry, cache.platform).model
        if model is None or model.stub_message is not None:
            return False
        return cache.writer.path in self._imports.reached(model.module.path, entry.module)

    def _compared(self, entry: Entry, cache: SharedCache) -> Iterator[Gap]:
        written = self._layout_written(cache)
        if isinstance(written, str):
            yield _untold(entry, cache, written)
            return
        for phase in cache.phases:
            broken: dict[tuple[str, Layout], tuple[Access, list[str]]] = {}
            for card in cache.cards:
                reads = self._reads(cache, phase, card)
                if isinstance(reads, str):
                    yield _untold(entry, cache, reads)
                    continue
                for read in reads:
                    if read.layout is not written:
                        broken.setdefault((read.where, read.layout), (read, []))[1].append(card)
            for read, cards in broken.values():
                when = f"the request is in {phase} on {' or '.join(cards)}"
                yield self._broken(entry, cache, when, written, read)

    def _layout_written(self, cache: SharedCache) -> Layout | str:
        """How the writer lays the cache out, or why that cannot be told."""
        if cache.name not in self._written:
            writer = self._function(cache.writer)
            if isinstance(writer, str):
                self._written[cache.name] = writer
            else:
                library = self._registry.library(cache.platform)
                pointers = frozenset((cache.writer.cache,))
                found = accesses(library, self._bodies, writer, pointers, cache.known).stores
                self._written[cache.name] = (
                    found or f"{cache.writer} is not seen to write the cache"
                )
        return self._written[cache.name]

    def _reads(self, cache: SharedCache, phase: str, card: str) -> list[Access] | str:
        """The reads of one phase on one card, or why there are none."""
        key = (cache.name, phase, card)
        if key not in self._read:
            reader = self._function(cache.reader)
            if isinstance(reader, str):
                self._read[key] = reader
            else:
                known = {**cache.known, **cache.phases[phase], **cache.cards[card]}
                facts = Facts(known, cache.foreign)
                launches = Launches(self._registry.library(cache.platform), self._bodies, facts)
                found = [a for a in launches.follow(reader, cache.reader.cache) if a.is_read]
                untold = f"{cache.reader} is not seen to read the cache in {phase} on {card}"
                self._read[key] = found or untold
        return self._read[key]

    def _function(self, place: Place) -> Function | str:
        """The function at a place of the table, or why it cannot be told which it is."""
        if not self._registry.index.tree.has(place.path):
            return f"there is no {place.path}"
        module = self._registry.index.at(place.path)
        named = [n for n in module.body if isinstance(n, FUNCTIONS) and n.name == place.function]
        if len(named) != 1:
            return f"{place.path} has {len(named) or 'no'} functions {place.function}()"
        if place.cache not in {parameter.arg for parameter in named[0].args.args}:
            return f"{place} has no parameter {place.cache}"
        return Function(module, named[0])

    def _broken(
        self, entry: Entry, cache: SharedCache, when: str, written: Layout, read: Access
    ) -> Gap:
        writer = self._function(cache.writer)
        assert isinstance(writer, Function)
        return Gap(
            severity=Severity.WRONG_ANSWERS,
            platform=cache.platform,
            arch=entry.arch,
            class_name=f"{read.function}()",
            attribute=cache.name,
            reader=read.function,
            where=read.where,
            condition=when,
            providers=(),
            note=f"reads the {cache.name} {read.layout.value} at {read.where}; "
            f"{writer.name}() at {writer.where} writes them {written.value}",
            class_where=read.where,
            explanation=(
                f"write: {writer.where}: {writer.name}() stores {written.value}",
                f"read: {read.where}: {read.function}() runs {read.op}(), {read.layout.value}",
                f"held to be so: {', '.join(f'{k} = {v}' for k, v in cache.known.items())}",
            ),
        )


def _untold(entry: Entry, cache: SharedCache, reason: str) -> Gap:
    """A line of the table that does not fit the tree."""
    return Gap(
        severity=Severity.NOT_COMPARED,
        platform=cache.platform,
        arch=entry.arch,
        class_name=f"the layout of the {cache.name}",
        attribute=cache.name,
        reader=cache.reader.function,
        where=f"{cache.reader.path}:1",
        condition="",
        providers=(),
        note=f"not compared, for {reason}",
        class_where=f"{cache.writer.path}:1",
    )
