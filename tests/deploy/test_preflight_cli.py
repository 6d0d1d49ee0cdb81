"""The preflight command: its forms, exit codes, and the real machine."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from deploy import recipe
from deploy.preflight import cli
from deploy.preflight.caches import NOTE
from deploy.preflight.facts.limits import Process, read_device, read_port, read_process
from deploy.preflight.facts.locks import process_start
from deploy.preflight.findings import Unknown
from deploy.preflight.host import Host, Told
from tests.support import in_process, recorded_hosts
from tests.support.recorded_hosts import RecordedHost

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """The command, in an environment that holds nothing but what is given."""
    return in_process.run(cli.main, *arguments, environ={"PATH": os.environ["PATH"], **environ})


def look(tree: Path, *arguments: str) -> int:
    """The command's exit code, run on a machine written down."""
    return cli.main(list(arguments), RecordedHost(tree))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--bogus"], "--bogus"),
        (["--profile", "mi999"], "mi999"),
        (["--format", "xml"], "xml"),
    ],
)
def test_misuse_is_one_line_and_exit_2(arguments: list[str], told: str) -> None:
    """Nothing is looked at and nothing printed but the line."""
    ended = run(*arguments)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert told in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_the_json_form_holds_every_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Programs read the same findings that people do, and the exit code in both."""
    recorded_hosts.broken(tmp_path).done()
    assert look(tmp_path, "--format", "json") == 1
    report = json.loads(capsys.readouterr().out)
    assert look(tmp_path) == 1
    as_text = capsys.readouterr().out
    assert report["profile"] == "mi300x"
    assert report["exit_code"] == 1
    for f in report["findings"]:
        assert f"{f['check']}: {f['seen']}" in as_text
        if f["level"] != "ok" and f["remedy"]:
            assert f"fix: {f['remedy']}" in as_text


def test_the_environment_names_the_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """DSPARK_PROFILE of the machine looked at is taken, --profile wins over it."""
    tree = recorded_hosts.gpu_host(tmp_path, "mi300x")
    tree.note("environ", DSPARK_PROFILE="mi355x")
    tree.done()
    look(tmp_path)
    assert "preflight of mi355x" in capsys.readouterr().out
    assert look(tmp_path, "--profile", "mi300x") == 0
    assert "preflight of mi300x" in capsys.readouterr().out


def test_terminal_codes_in_a_file_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was read is shown as printable text on one line."""
    tree = recorded_hosts.gpu_host(tmp_path, "mi300x")
    tree.note("environ", VLLM_PORT="tcp://\x1b[31m\nred")
    tree.done()
    look(tmp_path)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "VLLM_PORT=tcp://?[31m?red" in out


def test_flags_after_two_dashes_are_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The user's own flags are part of the plan."""
    recorded_hosts.gpu_host(tmp_path, "mi355x").done()
    assert look(tmp_path, "--", "--pipeline-parallel-size", "2") == 1
    assert "dspark.pipeline_parallel" in capsys.readouterr().out


def test_this_machine_is_judged_without_a_traceback() -> None:
    """Whatever runs the tests gets findings, in the time of one deadline."""
    for profile in [p.name for p in recipe.load().profiles.values()]:
        ended = run("--profile", profile, "--format", "json", HOME=str(Path.home()))
        assert ended.returncode in (0, 1)
        assert json.loads(ended.stdout)["findings"]
        assert ended.stderr == ""


def test_a_port_that_somebody_listens_on_is_taken(tmp_path: Path) -> None:
    """A real listener on a real port; a closed one is free again; 65536 is no port."""
    host = Host()
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        assert read_port(host, "serve", "127.0.0.1", number).free is False
    assert read_port(host, "serve", "127.0.0.1", number).free is True
    assert isinstance(read_port(host, "serve", "127.0.0.1", 65536).free, Unknown)
    assert isinstance(read_port(host, "serve", "203.0.113.9", number).free, Unknown)


def test_the_local_host_tells_what_the_kernel_tells(tmp_path: Path) -> None:
    """Groups, limits, disk and devices of this very process."""
    host = Host()
    seen = read_process(host)
    assert isinstance(seen, Process)
    assert seen.uid == os.geteuid()
    assert seen.groups == {os.getegid(), *os.getgroups()}
    disk = host.disk(str(tmp_path))
    assert disk.total == os.statvfs(tmp_path).f_frsize * os.statvfs(tmp_path).f_blocks
    assert read_device(host, "/dev/null").error is None
    assert read_device(host, str(tmp_path / "kfd")).error == "No such file or directory"
    assert str(process_start(host, os.getpid())).isdigit()
    assert process_start(host, 2**22 + 1) is None  # above the kernel's largest pid


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_may_not_be_written(tmp_path: Path) -> None:
    """The kernel's answer, not the mode bits alone."""
    tmp_path.chmod(0o500)
    assert not Host().may_write(str(tmp_path))
    tmp_path.chmod(0o700)
    assert Host().may_write(str(tmp_path))


LIBRARY = """
def amdsmi_init(): {init}
def amdsmi_shut_down(): pass
def amdsmi_get_processor_handles(): return [1, 2]
def amdsmi_get_gpu_asic_info(handle): return {{"market_name": f"AMD Instinct MI30{{handle}}X"}}
def amdsmi_get_gpu_vram_usage(handle): return {{"vram_total": 196592, "vram_used": 285 + handle}}
"""


@pytest.mark.parametrize(
    ("init", "expected"),
    [
        ("pass", "[('AMD Instinct MI301X', 206141652992, 299892736)"),
        ("raise Exception('no driver')", "None"),
    ],
)
def test_amdsmi_is_asked_where_it_is_installed(tmp_path: Path, init: str, expected: str) -> None:
    """Its MiB become bytes; a library without a driver under it is as good as none."""
    (tmp_path / "amdsmi.py").write_text(LIBRARY.format(init=init))
    code = (
        "from deploy.preflight.host import Host\n"
        "found = Host().gpu_library()\n"
        "print(found and [(g.name, g.vram_total, g.vram_used) for g in found])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.stdout.startswith(expected), ended.stderr


@pytest.mark.parametrize(
    ("body", "seconds", "expected"),
    [
        ("printf 'metric %s crossed threshold' $4; exit 1", 60, (1, "metric -m crossed threshold")),
        ("echo no such flag >&2; exit 1", 60, (1, "no such flag\n")),
        ("exec sleep 600", 0.2, (None, "no answer in 0.2 s")),
    ],
)
def test_amds_tool_is_run_where_it_is_on_path(
    tmp_path: Path, body: str, seconds: float, expected: tuple[int | None, str]
) -> None:
    """A stand-in of its name: arguments, code and output pass, one that hangs is left."""
    tool = tmp_path / "amdgpuhealth"
    host = Host({"PATH": f"{tmp_path}:/usr/bin:/bin"})
    query = "query counter-metric x -m"
    assert host.amdgpuhealth(query) is None
    tool.write_text("not a program")
    tool.chmod(0o755)
    assert host.amdgpuhealth(query) == Told(None, "Exec format error")
    tool.write_text(f"#!/bin/sh\n{body}\n")
    assert host.amdgpuhealth(query, seconds) == Told(*expected)


def test_empty_caches_are_noted_and_filled_ones_left_alone(tmp_path: Path) -> None:
    """The note is written once; a cache of unknown origin is not blessed."""
    made = recorded_hosts.safetensors({"w": 8})
    for file, content in (("target/model.safetensors", made), ("target/config.json", b"{}")):
        path = tmp_path / "models" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "kernel").write_text("x")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    environ = {
        "REHEARSAL_HOME": str(tmp_path / "models"),
        "HOME": str(tmp_path),
        "VLLM_CACHE_ROOT": str(tmp_path / "vllm"),
        "TRITON_CACHE_DIR": str(tmp_path / "triton"),
    }
    ended = run("--profile", "rehearsal", "--note-caches", "--", "--port", str(port), **environ)
    assert ended.returncode == 0, ended.stdout
    note = json.loads((tmp_path / "vllm" / NOTE).read_text())
    assert note == {"vllm": recipe.load().vllm.version, "arch": "cpu"}
    assert not (tmp_path / "triton" / NOTE).exists()
    loaded = recipe.load()
    host = Host({**environ})
    report = cli.inspect(host, loaded, loaded.profile("mi300x"))
    assert {f.check: f.level for f in report.findings}["cache.triton"] == "unknown"
