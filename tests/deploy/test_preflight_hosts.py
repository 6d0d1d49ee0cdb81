"""Whole preflight runs on constructed machines: what is found, and the exit code."""

import fcntl
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy import recipe
from deploy.preflight import cli, facts
from deploy.preflight.findings import Finding
from deploy.preflight.host import Host
from deploy.recipe import switches
from tests.support import recorded_hosts
from tests.support.recorded_hosts import CARDS, GIB, NOW, RENDER_GID, RecordedHost, Tree

NODE_1 = "/sys/class/kfd/kfd/topology/nodes/1"
DRM_1 = "/sys/class/drm/renderD128/device"


def inspect(tree: Tree, profile: str | None = None, *extra: str) -> cli.Report:
    """The report on a machine, by a named profile or the one that fits."""
    loaded = recipe.load()
    host = RecordedHost(tree.done())
    named = loaded.profile(profile) if profile else None
    return cli.inspect(host, loaded, named, extra, graphs=switches.graphs(host.environ))


def finding(report: cli.Report, check: str) -> Finding:
    """The one finding of a check."""
    (found,) = (f for f in report.findings if f.check == check)
    return found


@pytest.mark.parametrize("card", CARDS)
def test_a_prepared_host_passes_with_the_profile_of_its_card(tmp_path: Path, card: str) -> None:
    """Nothing fails, warns or stays unknown, and the profile is picked by the card."""
    profile = recipe.load().profile(card)
    report = inspect(recorded_hosts.gpu_host(tmp_path, card, gpus=profile.gpu.count))
    assert report.profile == card
    assert {f.level for f in report.findings} == {"ok"}
    assert report.exit_code == 0


@pytest.mark.parametrize(
    ("gpus", "environ", "profile"),
    [
        (8, {}, "mi300x-8"),
        (7, {}, "mi300x"),
        (8, {"HIP_VISIBLE_DEVICES": "0"}, "mi300x"),
    ],
)
def test_of_a_cards_profiles_the_one_for_the_cards_that_are_there_is_picked(
    tmp_path: Path, gpus: int, environ: dict[str, str], profile: str
) -> None:
    """Eight MI300X get the plan of eight, fewer, or fewer left by the environment, that of one."""
    tree = recorded_hosts.gpu_host(tmp_path, "mi300x", gpus=gpus)
    tree.note("environ", **environ)
    report = inspect(tree)
    assert report.profile == profile
    assert finding(report, "profile").level == "ok"
    assert report.exit_code == 0


def test_an_mi350x_is_told_from_an_mi355x_by_its_pci_id(tmp_path: Path) -> None:
    """Architecture, CUs and memory are the same; a card without a known id is a warning."""
    tree = recorded_hosts.gpu_host(tmp_path, "mi355x", gpus=4)
    path = tmp_path / NODE_1.lstrip("/") / "properties"
    path.write_text(path.read_text().replace(f"device_id {0x75A3}", f"device_id {0x75A0}"))
    assert inspect(tree).profile == "mi350x"
    path.write_text(path.read_text().replace(f"device_id {0x75A0}", "device_id 7"))
    report = inspect(tree)
    assert finding(report, "profile").level == "warn"
    assert "mi350x" in finding(report, "profile").why


def test_amds_library_names_a_card_that_the_files_do_not(tmp_path: Path) -> None:
    """amdsmi's market name decides between alike cards, its memory figures fill the gap."""
    tree = recorded_hosts.gpu_host(tmp_path, "mi355x", gpus=4)
    path = tmp_path / NODE_1.lstrip("/") / "properties"
    path.write_text(path.read_text().replace(f"device_id {0x75A3}", "device_id 7"))
    (tmp_path / DRM_1.lstrip("/") / "mem_info_vram_used").unlink()
    tree.notes["gpu_library"] = [
        {"name": "AMD Instinct MI350X", "vram_total": 288 * GIB, "vram_used": 200 * GIB}
    ]
    report = inspect(tree)
    assert report.profile == "mi350x"
    assert finding(report, "gpu.vram").level == "fail"


ECC, RAS = facts.QUERIES
# What the code of v1.5.2 prints (tools/amd-gpu-health); "[debian]" is its form in a package.
WELL = {"code": 0, "text": "metric GPU_ECC_UNCORRECT_TOTAL is within threshold\n"}  # [debian]
CROSSED = {"code": 1, "text": "metric GPU_ECC_UNCORRECT_TOTAL crossed threshold"}


@pytest.mark.parametrize(
    ("ecc", "ras", "level", "words"),
    [
        (WELL, {"code": 0, "text": ""}, "ok", "2 queries within"),
        (CROSSED, {"code": 0, "text": ""}, "warn", "GPU_ECC_UNCORRECT_TOTAL crossed threshold"),
        (
            {"code": 2, "text": "unable to query metrics endpoint"},
            {"code": 1, "text": "error count 3 crossed threshold 0"},
            "warn",
            "error count 3 crossed threshold 0",
        ),
        (
            WELL,
            {"code": 2, "text": "unable to query inband ras errors"},
            "unknown",
            f"{RAS}: unable to query",
        ),
        # what cobra says to a flag that another version does not know, with the code of a bad card
        (
            {"code": 1, "text": "Error: unknown shorthand flag: 't' in -t\nUsage:\n"},
            WELL,
            "unknown",
            f"{ECC}: Error: unknown",
        ),
        ({"code": None, "text": "no answer in 10 s"}, WELL, "unknown", f"{ECC}: no answer"),
    ],
)
def test_what_amdgpuhealth_says_is_told_and_stops_no_start(
    tmp_path: Path, ecc: dict[str, Any], ras: dict[str, Any], level: str, words: str
) -> None:
    """An error of some card is a warning, a tool that cannot tell is unknown."""
    tree = recorded_hosts.gpu_host(tmp_path, "mi300x")
    tree.note("amdgpuhealth", **{ECC: ecc, RAS: ras})
    report = inspect(tree, "mi300x")
    found = finding(report, "gpu.amdgpuhealth")
    assert (found.level, report.exit_code) == (level, 0)
    assert words in found.seen


def test_without_amdgpuhealth_nothing_is_said_of_it(tmp_path: Path) -> None:
    """Most machines do not have it."""
    report = inspect(recorded_hosts.gpu_host(tmp_path, "mi300x"), "mi300x")
    assert "gpu.amdgpuhealth" not in {f.check for f in report.findings}


def cgroup_1(tree: Tree, limit: int) -> None:
    """A host whose memory controller is still the old one."""
    (tree.root / "sys/fs/cgroup/memory.max").unlink()
    tree.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", f"{limit}\n")


@pytest.mark.parametrize(
    ("before", "after", "level", "words"),
    [
        (180, 90, "fail", "falling: it is being given back (-90.0 GB in 0.5 s)"),
        (180, 1, "ok", "falling"),
        (20, 60, "fail", "rising: something loads (+40.0 GB"),
        (180, 180, "fail", "180.0 of 206 GB in use; the plan takes"),
    ],
)
def test_memory_that_is_being_given_back_is_told(
    tmp_path: Path, before: int, after: int, level: str, words: str
) -> None:
    """Memory in use is read twice: what an ended process still gives back needs only a wait."""
    tree = recorded_hosts.gpu_host(tmp_path, "mi300x", gpus=1)
    used = f"{DRM_1}/mem_info_vram_used"
    tree.write(used, f"{before * 10**9}\n")
    tree.note("later", **{used: f"{after * 10**9}\n"})
    found = finding(inspect(tree), "gpu.vram")
    assert found.level == level, found
    assert words in found.seen


def test_an_mi308x_is_not_an_mi300x(tmp_path: Path) -> None:
    """80 CUs under the plan of 304 fail, although both are gfx942 with 192 GiB."""
    report = inspect(recorded_hosts.gpu_host(tmp_path, "mi308x"), "mi300x")
    units = finding(report, "gpu.compute_units")
    assert units.level == "fail"
    assert "80 CUs" in units.seen
    assert "304" in units.seen
    assert finding(report, "gpu.arch").level == "ok"
    assert finding(report, "gpu.memory").level == "ok"


def test_another_architecture_fails(tmp_path: Path) -> None:
    """gfx942 under the plan of gfx950 names both."""
    arch = finding(inspect(recorded_hosts.gpu_host(tmp_path, "mi300x"), "mi355x"), "gpu.arch")
    assert arch.level == "fail"
    assert "gfx942" in arch.seen
    assert "gfx950" in arch.seen


@pytest.mark.parametrize("has_mode_file", [True, False])
def test_a_partitioned_card_is_unknown_not_failed(tmp_path: Path, has_mode_file: bool) -> None:
    """In CPX mode the card shows 38 CUs and 24 GiB: that is said, and does not fail."""
    tree = recorded_hosts.gpu_host(tmp_path, "mi300x", gpus=1, mode="CPX")
    if not has_mode_file:
        for file in tmp_path.rglob("current_compute_partition"):
            file.unlink()
    report = inspect(tree)
    assert report.profile == "mi300x"
    assert report.exit_code == 0
    for check in ("gpu.compute_units", "gpu.memory", "gpu.partition", "gpu.vram"):
        assert finding(report, check).level == "unknown"
    assert "38 CUs" in finding(report, "gpu.compute_units").seen
    assert "partition" in finding(report, "gpu.compute_units").seen


def test_too_few_gpus_fail_and_withheld_ones_are_told(tmp_path: Path) -> None:
    """A node that the device cgroup withholds is another container's, not a fault."""
    tree = recorded_hosts.gpu_host(tmp_path, "mi355x", gpus=4)
    tree.note("errors", **{f"{NODE_1}/properties": "EPERM"})
    count = finding(inspect(tree, "mi355x"), "gpu.count")
    assert count.level == "fail"
    assert "3 in the topology, 1 given to others; the plan takes 4" in count.seen


def test_the_environment_can_hide_gpus(tmp_path: Path) -> None:
    """The smallest of the VISIBLE_DEVICES lists counts."""
    tree = recorded_hosts.gpu_host(tmp_path, "mi355x", gpus=8)
    tree.note("environ", HIP_VISIBLE_DEVICES="0,1,2,3", ROCR_VISIBLE_DEVICES="0,1")
    assert finding(inspect(tree), "gpu.count").level == "fail"
    assert finding(inspect(tree, "mi355x", "-tp", "2"), "gpu.count").level == "ok"


def test_a_laptop_is_told_to_rehearse(tmp_path: Path) -> None:
    """Without a GPU and a profile there is one finding, with both ways out."""
    report = inspect(recorded_hosts.laptop(tmp_path))
    assert report.profile is None
    assert report.exit_code == 1
    assert "make rehearsal" in finding(report, "profile").remedy


def test_a_laptop_with_an_amd_profile_lacks_device_and_disk(tmp_path: Path) -> None:
    """The missing device names what maps it, the missing weights what fetches them."""
    report = inspect(recorded_hosts.laptop(tmp_path), "mi355x")
    assert "--device /dev/kfd" in finding(report, "gpu.kfd").remedy
    assert finding(report, "gpu.arch").level == "unknown"
    disk = finding(report, "weights.disk")
    assert (disk.level, disk.seen.split(" for ")[0]) == ("fail", "60 GB free")
    model = recipe.load().profile("mi355x").model
    remedy = finding(report, "weights.revision").remedy
    assert f"hf download {model.id} --revision {model.revision}" in remedy


def test_the_rehearsal_meets_no_gpu_check(tmp_path: Path) -> None:
    """Only what a CPU server needs is judged."""
    tree = recorded_hosts.laptop(tmp_path)
    tree.write("/home/models/target/model.safetensors", recorded_hosts.safetensors({"w": 8}))
    tree.write("/home/models/target/config.json", "{}")
    tree.note("environ", REHEARSAL_HOME="/home/models")
    report = inspect(tree, "rehearsal")
    assert report.exit_code == 0
    areas = {f.check.partition(".")[0] for f in report.findings}
    assert areas == {"weights", "env", "net", "plan"}
    assert finding(report, "weights.shards").level == "ok"


def test_a_broken_host_fails_in_every_way_at_once(tmp_path: Path) -> None:
    """All faults are told in one run, worst first, each with its remedy."""
    report = inspect(recorded_hosts.broken(tmp_path))
    levels = {f.check: f.level for f in report.findings}
    failing = {check for check, level in levels.items() if level == "fail"}
    assert failing == {
        "gpu.kfd",
        "gpu.render",
        "gpu.vram",
        "aiter.locks",
        "cache.aiter",
        "weights.shards",
        "env.vllm_port",
        "net.serve_port",
    }
    warned = {check for check, level in levels.items() if level == "warn"}
    assert warned == {
        "host.shm",
        "host.memlock",
        "host.stack",
        "host.numa_balancing",
        "host.iommu",
    }
    assert all(f.remedy and f.why for f in report.findings if f.level in ("fail", "warn"))
    assert report.exit_code == 1
    order = [cli.LEVELS.index(f.level) for f in report.findings]
    assert order == sorted(order)


def test_a_refused_kfd_names_the_gid_in_docker_and_kubernetes_terms(tmp_path: Path) -> None:
    """The number is the device's own, never a default."""
    kfd = finding(inspect(recorded_hosts.broken(tmp_path)), "gpu.kfd")
    assert f"its group is {RENDER_GID}, this process has groups 1000" in kfd.seen
    assert f"--group-add {RENDER_GID}" in kfd.remedy
    assert f"supplementalGroups: [{RENDER_GID}]" in kfd.remedy


def test_a_refused_kfd_with_the_group_present_blames_the_cgroup(tmp_path: Path) -> None:
    """Adding the group again would not help."""
    tree = recorded_hosts.gpu_host(tmp_path, "mi300x")
    tree.note("errors", **{"/dev/kfd": "EPERM"})
    kfd = finding(inspect(tree), "gpu.kfd")
    assert kfd.level == "fail"
    assert "--device /dev/kfd" in kfd.remedy
    assert "--group-add" not in kfd.remedy


def lock(tree: Tree, text: str, age: float) -> None:
    """A lock of AITER in its default folder."""
    path = "/home/user/.aiter/jit/build/lock_module_gemm"
    tree.write(path, text)
    tree.note("stat", **{path: {"mtime": NOW - age}})


# What the newest AITER writes below pid and host name: namespace, start, the way it holds the lock.
SINCE = "pid:[40]\n123\n"
# Fields 3 to 22 of a process' stat: state, numbers, start.
ENDED, RUNS, REUSED = (f"{state} {'0 ' * 18}{start} 0" for state, start in (("Z", 123), ("S", 123), ("S", 124)))  # fmt: skip


@pytest.mark.parametrize(
    ("text", "age", "process", "level"),
    [
        ("", 30.0, None, "unknown"),  # may be a build that has just begun
        ("", 7200.0, None, "fail"),
        # Host name and pid may be another container's, whether such a process is here or not.
        ("77\nnode-1\n", 30.0, None, "unknown"),
        ("77\nnode-1\n", 30.0, RUNS, "unknown"),
        ("77\nnode-1\n", 7200.0, RUNS, "fail"),
        ("77\nnode-2\n", 7200.0, None, "fail"),
        ("77\nnode-2\n", 30.0, None, "unknown"),
        # With the namespace the pid is its owner, unless another process has it by now.
        (f"77\nnode-1\n{SINCE}", 7200.0, RUNS, "warn"),
        (f"77\nnode-1\n{SINCE}", 30.0, REUSED, "fail"),
        (f"77\nnode-1\n{SINCE}", 30.0, ENDED, "fail"),  # not reaped
        (f"77\nnode-1\n{SINCE}", 30.0, None, "fail"),
        ("77\nnode-1\npid:[41]\n123\n", 30.0, RUNS, "unknown"),
        ("77\nnode-1\npid:[41]\n123\n", 7200.0, RUNS, "fail"),
        (f"77\nnode-2\n{SINCE}", 30.0, RUNS, "unknown"),
        # What the kernel holds for a process ends with it, in every namespace.
        (f"77\nnode-1\n{SINCE}flock\n", 30.0, RUNS, "fail"),
        ("77\nnode-1\npid:[41]\n123\nflock\n", 30.0, None, "fail"),
        ("77\nnode-1\npid:[41]\n123\nflock\nheld", 7200.0, None, "warn"),
        ("77\nnode-2\npid:[41]\n123\nflock\n", 30.0, None, "unknown"),
        ("77\nnode-2\npid:[41]\n123\nflock\n", 7200.0, None, "fail"),
    ],
)
def test_a_build_lock_is_judged_by_its_owner_where_that_is_known_else_by_age(
    tmp_path: Path, text: str, age: float, process: str | None, level: str
) -> None:
    """AITER waits without a limit for a lock that nobody will release."""
    tree = recorded_hosts.gpu_host(tmp_path, "mi300x")
    tree.notes["pid_namespace"] = "pid:[40]"
    lock(tree, text.removesuffix("held"), age)
    if text.endswith("held"):
        tree.notes["locked"] = ["/home/user/.aiter/jit/build/lock_module_gemm"]
    if process:
        tree.write("/proc/77/stat", f"77 (ninja) (x)) {process}")
    found = finding(inspect(tree), "aiter.locks")
    assert found.level == level
    assert "/home/user/.aiter/jit/build/lock_module_gemm" in found.seen
    assert ("rm '/home" in found.remedy) is (level in ("fail", "unknown"))


def test_the_kernel_is_asked_who_holds_a_lock(tmp_path: Path) -> None:
    """A file that another holder has locked, and one that nobody has any more; its namespace."""
    path = tmp_path / "lock"
    path.write_text("1\n")
    with path.open("rb") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        assert Host().is_locked(str(path))
    assert not Host().is_locked(str(path))
    assert Host().pid_namespace().startswith("pid:[")


@pytest.mark.parametrize(
    ("free", "level"), [(20 << 20, "fail"), (5 << 30, "warn"), (20 << 30, "ok")]
)
def test_a_cache_without_room_to_compile_fails(tmp_path: Path, free: int, level: str) -> None:
    """Each cache by the volume that it is on."""
    tree = recorded_hosts.gpu_host(tmp_path, "mi300x")
    for kind, variable in (("triton", "TRITON_CACHE_DIR"), ("vllm", "VLLM_CACHE_ROOT")):
        tree.note("environ", **{variable: f"/cache/{kind}"})
    tree.write("/cache/.keep", "")
    tree.note("disks", **{"/cache": {"total": 100 << 30, "free": free}})
    report = inspect(tree)
    levels = {kind: finding(report, f"cache.{kind}").level for kind in ("triton", "vllm", "aiter")}
    assert levels == {"triton": level, "vllm": level, "aiter": "ok"}


@pytest.mark.parametrize(
    ("words", "level", "seen"),
    [
        (["--revision", "other"], "ok", "snapshots/other"),
        (["--revision=none"], "fail", "at none is not in /"),
        (["--model", "/copy"], "ok", "/copy"),
        (["--model", "/nowhere"], "fail", "/nowhere at main is not in /nowhere"),
        (["--model", "some/other"], "fail", "some/other at main is not in /"),
        (["--model", "./weights/copy"], "unknown", "./weights/copy is no hub's name"),
        (["--model", "a/b/c"], "unknown", "only a start tells"),
    ],
)
def test_the_weights_that_are_looked_at_are_those_that_are_served(
    tmp_path: Path, words: list[str], level: str, seen: str
) -> None:
    """Another revision or model of a flag, in the hub's cache or a folder, and its config."""
    tree = recorded_hosts.gpu_host(tmp_path, "mi300x")
    snapshot = next(tmp_path.rglob("model.safetensors.index.json")).parent
    for copy in (snapshot.with_name("other"), tmp_path / "copy"):
        shutil.copytree(snapshot, copy)
    report = inspect(tree, "mi300x", *words)
    found = finding(report, "weights.revision")
    assert (found.level, seen in found.seen) == (level, True), found
    if level == "ok":
        assert finding(report, "weights.shards").level == "ok"


@pytest.mark.parametrize(
    ("size", "level"),
    [("16000000000", "ok"), ("16g", "ok"), ("60G", "fail"), ("60_000_000_000", "fail"), ("4G", "ok")],
)  # fmt: skip
def test_a_cache_of_keys_and_values_is_a_number_in_every_spelling(
    tmp_path: Path, size: str, level: str
) -> None:
    """The recipe's own value has the recipe's verdict; what does not fit the card fails."""
    tree = recorded_hosts.gpu_host(tmp_path, "mi300x", gpus=1)
    report = inspect(tree, "mi300x", "--kv-cache-memory-bytes", size)
    assert finding(report, "plan.memory").level == level
    if size.startswith("16"):
        assert report.findings == inspect(tree, "mi300x").findings


@pytest.mark.parametrize(
    ("note", "level"),
    [
        (None, "unknown"),
        ({"vllm": "0.27.1", "arch": "gfx942"}, "ok"),
        ({"vllm": "0.27.1", "arch": "gfx950"}, "fail"),
        ({"vllm": "0.28.0", "arch": "gfx942"}, "fail"),
        ("garbage", "unknown"),
    ],
)
def test_a_filled_cache_says_what_it_was_made_for(tmp_path: Path, note: object, level: str) -> None:
    """Kernels of another release or architecture are not to be loaded."""
    tree = recorded_hosts.gpu_host(tmp_path, "mi300x")
    tree.write("/cache/triton/kernel.hsaco", "x")
    tree.note("environ", TRITON_CACHE_DIR="/cache/triton")
    if note is not None:
        tree.write("/cache/triton/.dspark-made-for.json", json.dumps(note))
    found = finding(inspect(tree), "cache.triton")
    assert found.level == level
    assert "/cache/triton" in found.seen


SetUp = Callable[[Tree], object]


@pytest.mark.parametrize(
    ("set_up", "check", "level"),
    [
        (lambda t: t.note("disks", **{"/dev/shm": {"total": 64 << 20, "free": 0}}), "host.shm", "fail"),
        (lambda t: t.note("disks", **{"/dev/shm": {"total": 8 << 30, "free": 0}}), "host.shm", "warn"),
        (lambda t: t.write("/sys/fs/cgroup/memory.max", "8589934592\n"), "host.memory_limit", "warn"),
        (lambda t: t.write("/sys/fs/cgroup/memory.max", "lots\n"), "host.memory_limit", "unknown"),
        (lambda t: cgroup_1(t, 8 << 30), "host.memory_limit", "warn"),
        (lambda t: cgroup_1(t, (1 << 63) - 4096), "host.memory_limit", "ok"),
        (lambda t: t.write("/proc/cmdline", "ro quiet"), "host.iommu", "warn"),
        (lambda t: t.write("/proc/cmdline", "ro amd_iommu=off"), "host.iommu", "ok"),
        (lambda t: t.write("/opt/rocm/.info/version", "6.4.1-83\n"), "host.rocm", "warn"),
        (lambda t: t.write("/sys/module/amdgpu/version", "\x7fELF"), "host.driver", "unknown"),
        (lambda t: t.note("environ", HSA_ENABLE_IPC_MODE_LEGACY="0"), "env.ipc_mode", "warn"),
        (lambda t: t.note("environ", PYTORCH_HIP_ALLOC_CONF="expandable_segments:True"), "env.allocator", "warn"),
        (lambda t: t.note("environ", VLLM_PORT="tcp://10.1.2.3:8000"), "env.vllm_port", "fail"),
        (lambda t: t.note("environ", VLLM_PORT="29500"), "env.vllm_port", "ok"),
        (lambda t: t.notes.update(busy_ports=[8080]), "net.health_port", "warn"),
        (lambda t: t.write(f"{DRM_1}/mem_info_vram_used", "9000000000\n"), "gpu.vram", "warn"),
        (lambda t: t.write(f"{DRM_1}/mem_info_vram_used", "90000000000\n"), "gpu.vram", "fail"),
    ],
)  # fmt: skip
def test_one_setting_changes_one_finding(
    tmp_path: Path, set_up: SetUp, check: str, level: str
) -> None:
    """Each fault on an otherwise prepared MI355X host is told by its own check, and only there."""
    tree = recorded_hosts.gpu_host(tmp_path, "mi355x", gpus=4)
    set_up(tree)
    report = inspect(tree)
    assert finding(report, check).level == level
    assert {f.check for f in report.findings if f.level != "ok"} <= {check}


@pytest.mark.parametrize(
    ("flags", "environ", "check", "level"),
    [
        ((), {"VLLM_USE_V2_MODEL_RUNNER": "0", "DSPARK_GRAPHS": "on"}, "plan.graphs.piecewise_on_v1", "fail"),
        ((), {"DSPARK_GRAPHS": "on"}, "plan.graphs.choice", "warn"),
        (("--speculative-config", '{"method":"dspark","num_speculative_tokens":7}'), {}, "plan.dspark.k_above_block", "warn"),
        (("--no-such-flag",), {}, "plan.flags", "fail"),
        (("-tp", "16"), {}, "plan.mxfp4_shard", "warn"),
        (("-tp", "3"), {}, "plan.mxfp4_shard", "fail"),
    ],
)  # fmt: skip
def test_the_plan_is_judged_with_the_users_flags_and_environment(
    tmp_path: Path, flags: tuple[str, ...], environ: dict[str, str], check: str, level: str
) -> None:
    """Every rule that is broken is told, not the first alone."""
    tree = recorded_hosts.gpu_host(tmp_path, "mi355x", gpus=8)
    tree.note("environ", **environ)
    found = finding(inspect(tree, "mi355x", *flags), check)
    assert found.level == level
    assert found.why
    assert found.remedy


def test_v4_pro_at_eight_ranks_wastes_a_third(tmp_path: Path) -> None:
    """3072 over 8 is 384, padded to 512; the size is the checkpoint's own."""
    tree = recorded_hosts.gpu_host(tmp_path, "mi355x", gpus=8)
    config = next(tmp_path.rglob("config.json"))
    config.write_text(json.dumps({"moe_intermediate_size": 3072}))
    shard = finding(inspect(tree, "mi355x", "-tp", "8"), "plan.mxfp4_shard")
    assert shard.level == "warn"
    assert "384, padded to 512: 33% more" in shard.seen
    assert "--tensor-parallel-size 6," in shard.remedy


def test_a_machine_that_shows_nothing_is_unknown_and_not_bad(tmp_path: Path) -> None:
    """Where not one file can be read, every check of it says so with the system's reason; what
    fails is what a start would miss: the device, and the weights."""
    host = RecordedHost(tmp_path)
    loaded = recipe.load()
    report = cli.inspect(host, loaded, loaded.profile("mi355x"))
    levels = {finding.check: finding.level for finding in report.findings}
    failing = {check for check, level in levels.items() if level == "fail"}
    assert failing == {"gpu.kfd", "weights.revision"}
    unknown = {check for check, level in levels.items() if level == "unknown"}
    assert {"gpu.count", "gpu.vram", "host.shm", "host.iommu", "host.driver"} <= unknown
    assert {"host.memlock", "host.stack", "host.memory_limit", "weights.disk"} <= unknown
    reasons = [finding.seen for finding in report.findings if finding.level == "unknown"]
    assert all(reasons)
    (kfd,) = [finding for finding in report.findings if finding.check == "gpu.kfd"]
    assert "/proc/self/status" not in kfd.remedy


def test_a_port_that_cannot_be_tried_is_unknown(tmp_path: Path) -> None:
    """An address of another host, or a name that is none, says nothing about the port."""
    loaded = recipe.load()
    host = Host({"HOME": str(tmp_path)})
    for address, told in (("203.0.113.1", "Cannot assign requested"), ("ü" * 70, "too long")):
        report = cli.inspect(host, loaded, loaded.profile("rehearsal"), ["--host", address])
        seen = finding(report, "net.serve_port")
        assert seen.level == "unknown"
        assert told in seen.seen
