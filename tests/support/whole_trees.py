"""vLLM trees of releases that have no environment of their own, made to be imported."""

from pathlib import Path

from deploy import environment
from deploy.recipe import release
from deploy.recipe.release import Release
from deploy.versions import is_at_least
from tests.support.vllm_trees import link_copy, tree


def nearest(version: str) -> Release:
    """The newest release with an environment that is not newer than `version`, else the oldest."""
    known = [found for v in release.names() if (found := release.load(v)).rehearsal]
    older = [found for found in known if is_at_least(version, found.version)]
    return older[-1] if older else known[0]


def whole_tree(version: str, folder: Path) -> tuple[Path, Path]:
    """A tree of `version` in `folder`, and the python that can import it.

    Its sources are the release's, its extension modules those of `nearest`. It calls itself a vLLM
    that is not for the CPU, so that vLLM finds no platform, as a ROCm build does without a GPU.
    """
    python = environment.ensure("rehearsal", nearest(version))
    made = link_copy(tree(version), folder / version)
    (identity,) = made.glob("vllm*.dist-info")
    plain = made / f"vllm-{version}.dist-info"
    identity.rename(plain)
    (plain / "METADATA").unlink()  # a link to the cache's own
    (plain / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    (packages,) = python.parents[1].glob("lib/python*/site-packages")
    for module in (packages / "vllm").rglob("*.so"):
        place = made / module.relative_to(packages)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(module)
    return made, python
