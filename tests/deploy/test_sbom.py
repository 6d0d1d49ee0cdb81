"""The bill of materials of an image: what is listed, and how it is named."""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.containers import sbom
from patches import series
from tests.support import bom

ROOT = Path(__file__).resolve().parents[2]
BASE = "vllm/vllm-openai-rocm:v0@sha256:" + "0" * 64
STATUS = """Package: zlib1g
Status: install ok installed
Architecture: amd64
Multi-Arch: same
Version: 1:1.2.13.dfsg-1
Description: compression library - runtime
 Version: of a continued line

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: libstdc++6
Status: install ok installed
Architecture: amd64
Version: 12.2.0-14+deb12u1
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deploy.containers.sbom", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_the_bill_of_this_environment_is_cyclonedx_and_says_the_same_twice(tmp_path: Path) -> None:
    """Every distribution that can be imported is in it once, and no time makes two builds differ."""
    files = [tmp_path / name for name in ("first", "second")]
    for file in files:
        assert run("dspark-rocm/server", BASE, str(file)).returncode == 0
    made = json.loads(files[0].read_text())
    bom.check(made)
    assert files[0].read_bytes() == files[1].read_bytes()
    named = {p["name"]: p for p in made["components"] if p["purl"].startswith("pkg:pypi/")}
    assert named["requests"]["version"] == importlib.metadata.version("requests")
    (ancestor,) = made["metadata"]["component"]["pedigree"]["ancestors"]
    assert ancestor["name"] == BASE


def test_a_patched_vllm_is_no_plain_one(tmp_path: Path) -> None:
    """Its component carries the series, so that nobody reads the release's faults into it."""
    info = tmp_path / "vllm-0.27.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: vLLM\nVersion: 0.27.1+rocm723\nLicense-Expression: Apache-2.0\n"
    )
    (part,) = sbom.python_parts(importlib.metadata.distributions(path=[str(tmp_path)]))
    assert part["purl"] == "pkg:pypi/vllm@0.27.1%2Brocm723"
    assert part["licenses"] == [{"expression": "Apache-2.0"}]
    urls = [patch["diff"]["url"] for patch in part["pedigree"]["patches"]]
    assert urls == [f"patches/{patch.name}" for patch in series.load().patches]
    assert all((ROOT / url).is_file() for url in urls)
    bom.check(sbom.bill("server", BASE, [part]))


def test_packages_of_debian_are_read_from_dpkgs_own_list(tmp_path: Path) -> None:
    """Installed ones only, with epochs and signs as package URLs have them."""
    status = tmp_path / "status"
    status.write_text(STATUS)
    parts = list(sbom.debian_parts(status, {"ID": "debian", "VERSION_ID": "12"}))
    assert [part["purl"] for part in parts] == [
        "pkg:deb/debian/zlib1g@1%3A1.2.13.dfsg-1?arch=amd64&distro=debian-12",
        "pkg:deb/debian/libstdc%2B%2B6@12.2.0-14%2Bdeb12u1?arch=amd64&distro=debian-12",
    ]
    bom.check(sbom.bill("server", BASE, parts))
    assert list(sbom.debian_parts(tmp_path / "none", {"ID": "alpine"})) == []


def test_a_list_that_is_cut_off_is_no_bill(tmp_path: Path) -> None:
    """A package without a version is one line and not left out."""
    status = tmp_path / "status"
    status.write_text(STATUS.replace("Version: 12.2.0-14+deb12u1\n", ""))
    with pytest.raises(sbom.SbomError, match="a package without 'Version'; mend the base image"):
        list(sbom.debian_parts(status, {"ID": "debian"}))


def test_misuse_and_a_folder_that_cannot_be_written_are_one_line(tmp_path: Path) -> None:
    """Nothing is printed as if it were a bill."""
    assert run("server").returncode == 2
    (tmp_path / "file").write_text("")
    ended = run("server", BASE, str(tmp_path / "file" / "bill"))
    assert ended.returncode == 1 and ended.stdout == ""
    assert ended.stderr.startswith("sbom: ") and ended.stderr.count("\n") == 1
