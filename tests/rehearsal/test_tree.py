"""The vLLM tree of a rehearsal: patched, while the installed package stays as it was."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.rehearsal import tree
from patches import apply, series

CARRIED = {"applied", "upstream"}


def fingerprint(package: Path) -> dict[str, tuple[int, int]]:
    """Path -> size and time of change of every file of a package, compiled caches left out."""
    found = {}
    for path in package.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            stat = path.stat()
            found[str(path)] = (stat.st_size, stat.st_mtime_ns)
    return found


def states(root: Path) -> set[str]:
    """The states of all patches of the series on a tree."""
    return {status.state for status in apply.status(root, series.load())}


@pytest.fixture(scope="module")
def installed() -> tree.InstalledVllm:
    """The vLLM of the environment that runs the tests."""
    return tree.find_installed()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder for the trees of this module."""
    return tmp_path_factory.mktemp("cache")


def test_tree_carries_the_series_and_the_installed_package_is_untouched(
    installed: tree.InstalledVllm, cache: Path
) -> None:
    """Publishing a tree applies the series to it and changes no file of the installed package."""
    before = fingerprint(installed.package)
    root = tree.publish_tree(cache)
    assert states(root) <= CARRIED
    assert fingerprint(installed.package) == before


def test_no_source_is_shared_with_the_installed_package(
    installed: tree.InstalledVllm, cache: Path
) -> None:
    """Writing to any Python source of the tree can never reach the installed package."""
    package = tree.publish_tree(cache) / "vllm"
    sources = list(package.rglob("*.py"))
    assert len(sources) > 1000
    for source in sources:
        original = installed.package / source.relative_to(package)
        assert not source.is_symlink()
        assert not source.samefile(original)


def test_extension_modules_take_no_space(installed: tree.InstalledVllm, cache: Path) -> None:
    """Every extension module of the tree is a link to the installed one."""
    package = tree.publish_tree(cache) / "vllm"
    modules = list(package.rglob("*.so"))
    assert modules
    for module in modules:
        assert module.samefile(installed.package / module.relative_to(package))


def test_pristine_tree_is_another_one(cache: Path) -> None:
    """The tree without the series has a folder of its own and carries no patch that is needed."""
    pristine = tree.publish_tree(cache, patched=False)
    assert pristine != tree.publish_tree(cache)
    assert "pending" in states(pristine)


def test_tree_is_reused(cache: Path) -> None:
    """A second call gives the same folder and does not write to it."""
    root = tree.publish_tree(cache)
    before = fingerprint(root)
    assert tree.publish_tree(cache) == root
    assert fingerprint(root) == before


def test_links_across_file_systems_work(installed: tree.InstalledVllm) -> None:
    """On another file system, where hard links fail, the tree is made of symbolic links."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == installed.package.stat().st_dev:
        pytest.skip("no second file system to test with")
    destination = memory / f"dspark-rehearsal-test-{os.getpid()}"
    source = installed.package / "py.typed"
    try:
        tree._copy_or_link(str(source), str(destination))
        assert destination.is_symlink()
        assert destination.samefile(source)
    finally:
        destination.unlink(missing_ok=True)


def test_python_takes_the_tree_for_a_cpu_build_of_vllm(cache: Path) -> None:
    """With the tree on PYTHONPATH, `vllm` is the tree's and says that it is built for the CPU."""
    root = tree.publish_tree(cache)
    program = (
        "import importlib.metadata as m, importlib.util as u;"
        "print(u.find_spec('vllm').origin, m.version('vllm'))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout.split()
    assert printed == [str(root / "vllm" / "__init__.py"), f"{tree.find_installed().version}+cpu"]
