"""Garbage in what the kernel, AITER or a download wrote: findings, never a traceback."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deploy import recipe
from deploy.preflight import cli
from deploy.preflight.facts.gpus import arch_name, read_visible
from deploy.preflight.findings import Unknown
from tests.support import recorded_hosts
from tests.support.recorded_hosts import RecordedHost

LOADED = recipe.load()
NODE = "sys/class/kfd/kfd/topology/nodes/1"
DRM = "sys/class/drm/renderD128/device"

# A file, and the checks that its garbage may leave unknown.
FILES = {
    f"{NODE}/properties": {
        "gpu.arch",
        "gpu.compute_units",
        "gpu.memory",
        "gpu.count",
        "gpu.partition",
        "gpu.vram",
    },
    f"{NODE}/mem_banks/0/properties": {"gpu.memory"},
    f"{DRM}/mem_info_vram_used": {"gpu.vram"},
    f"{DRM}/mem_info_vram_total": {"gpu.vram"},
    f"{DRM}/current_compute_partition": {"gpu.partition"},
    "sys/module/amdgpu/version": {"host.driver"},
    "sys/fs/cgroup/memory.max": {"host.memory_limit"},
    "proc/sys/kernel/numa_balancing": {"host.numa_balancing"},
    "proc/self/limits": {"host.memlock", "host.stack"},
    "opt/rocm/.info/version": {"host.rocm"},
}

GARBAGE = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")),
    st.sampled_from(
        [b"", b"\0" * 64, b"-1\n", b"9" * 5000, b"1e9", "٣".encode(), b"\xff\xfe", b"0x10\n"]
    ),
)

# Bytes that hold no line the kernel could have written.
NO_SENSE = GARBAGE.filter(lambda raw: not any(48 <= c <= 57 for c in raw) or raw[:1] in b"-\0")


@pytest.fixture(scope="module")
def host_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared MI355X host with one GPU spare."""
    return recorded_hosts.gpu_host(tmp_path_factory.mktemp("host"), "mi355x", gpus=4).done()


QUICK = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def garbled(file: Path, garbage: st.SearchStrategy[bytes], check: Callable[[], None]) -> None:
    """Check while the file holds garbage; it is put back at the end."""
    kept = file.read_bytes()

    @QUICK
    @given(raw=garbage)
    def garble(raw: bytes) -> None:
        file.write_bytes(raw)
        check()

    try:
        garble()
    finally:
        file.write_bytes(kept)


@pytest.mark.parametrize("name", FILES)
def test_garbage_in_a_kernel_file_leaves_its_checks_unknown(host_tree: Path, name: str) -> None:
    """The other checks keep their answers."""

    def check() -> None:
        report = cli.inspect(RecordedHost(host_tree), LOADED, LOADED.profile("mi355x"))
        unknown = {f.check for f in report.findings if f.level == "unknown"}
        assert unknown == FILES[name]
        assert report.exit_code == 0

    garbled(host_tree / name, NO_SENSE, check)


WEIGHTS = ("model.safetensors.index.json", "config.json", "model-00001-of-00003.safetensors")


@pytest.mark.parametrize("name", [*FILES, "proc/self/status", "proc/cmdline", *WEIGHTS])
def test_any_bytes_in_any_file_end_in_findings(host_tree: Path, name: str) -> None:
    """Numbers by chance and what a download left included, with a named profile and with one to be
    picked."""

    def check() -> None:
        for profile in (LOADED.profile("mi355x"), None):
            report = cli.inspect(RecordedHost(host_tree), LOADED, profile)
            assert cli.render(report, "text")
            assert cli.render(report, "json")

    file = next(host_tree.rglob(name)) if name in WEIGHTS else host_tree / name
    garbled(file, GARBAGE, check)


@QUICK
@given(
    pairs=st.dictionaries(
        st.sampled_from(
            ["simd_count", "simd_per_cu", "gfx_target_version", "drm_render_minor", "num_xcc",
             "device_id"]
        ),
        st.integers(min_value=-(2**70), max_value=2**70),
    )
)  # fmt: skip
def test_any_numbers_in_a_node_end_in_findings(
    host_tree: Path, pairs: dict[str, int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Zero units per CU, versions past any card, minors past any device."""
    tree = tmp_path_factory.mktemp("numbers") / "host"
    shutil.copytree(host_tree, tree)
    text = "".join(f"{name} {value}\n" for name, value in pairs.items())
    (tree / NODE / "properties").write_text(text)
    for profile in (LOADED.profile("mi300x"), None):
        assert cli.render(cli.inspect(RecordedHost(tree), LOADED, profile), "text")
    shutil.rmtree(tree)


@QUICK
@given(text=st.text(max_size=60))
def test_any_visible_devices_are_a_number_or_unknown(text: str) -> None:
    """What ROCm would make of it is not guessed."""
    seen = read_visible({"HIP_VISIBLE_DEVICES": text})
    assert isinstance(seen, int | Unknown)


@pytest.mark.parametrize(
    ("version", "name"),
    [(90402, "gfx942"), (90500, "gfx950"), (90010, "gfx90a"), (110000, "gfx1100"), (120001, "gfx1201")],
)  # fmt: skip
def test_the_kernels_version_becomes_the_compilers_name(version: int, name: str) -> None:
    """Minor and step are hexadecimal digits."""
    assert arch_name(version) == name
