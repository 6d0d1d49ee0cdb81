"""A rehearsal server of the AMD classes for proofs: with a checkpoint, flags and patches of choice.

Without `READS_FLAT` the decode reads its keys through AITER, which is not here: `stand_in` is an
entry point of vLLM that puts `indexer_stand_ins.tiled_scores` in its place, in that server alone.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from deploy import plan, recipe
from deploy.environment import cache_dir
from deploy.rehearsal.environment import AMD, prepare
from deploy.rehearsal.tree import publish_tree
from tests.support.rehearsal_server import RehearsalServer

READS_FLAT = "0004-rocm-v4-indexer-reads-flat.patch"


class AmdServer(RehearsalServer):
    """The AMD rehearsal's command with the checkpoint below `home`.

    `without` is the patch that the series lacks, `flags` go over the recipe's, and
    `speculation=False` serves without the draft and with the same model runner, for which vLLM has
    another where nothing is drafted. The log is in `folder`.
    """

    def __init__(
        self,
        folder: Path,
        home: Path,
        *,
        arch: str,
        without: str = "",
        speculation: bool = True,
        flags: Sequence[str] = (),
    ) -> None:
        folder.mkdir(parents=True)
        super().__init__(folder / "log", profile=AMD, arch=arch)
        cache = cache_dir(os.environ)
        prepared = prepare(cache, profile=AMD, arch=arch)
        path = prepared.pythonpath
        if without:
            path = (publish_tree(cache, without=without), *path[1:])
        if without == READS_FLAT:
            path = (*path, _entry_point(folder))
        additions = {**prepared.additions, "REHEARSAL_HOME": str(home)}
        self._prepared = replace(prepared, pythonpath=path, additions=additions)
        self._speculation = speculation
        self._flags = flags

    def _start(self) -> tuple[list[str], dict[str, str]]:
        variables = self._prepared.over(self._environment()) | {"VLLM_USE_V2_MODEL_RUNNER": "1"}
        flags = ["--port", str(self.port), *self._flags]
        made = plan.make(recipe.load().profile(AMD), flags, variables, self._speculation)
        return made.exec_argv(sys.executable), {**variables, **made.env}


def _entry_point(folder: Path) -> Path:
    """A folder that makes `stand_in` a plugin of vLLM."""
    info = folder / "plugin" / "amd_stand_in-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: amd-stand-in\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        f"[vllm.general_plugins]\namd_stand_in = {__name__}:stand_in\n"
    )
    return info.parent


def stand_in() -> None:
    """Let AITER's paged reader be there; called by vLLM after the rehearsal's own plugin."""
    from vllm.v1.attention.ops import rocm_aiter_mla_sparse as sparse

    from tests.support.indexer_stand_ins import tiled_scores

    paged = SimpleNamespace(deepgemm_fp8_paged_mqa_logits=tiled_scores)
    sparse.paged_mqa_logits_module = lambda: paged
