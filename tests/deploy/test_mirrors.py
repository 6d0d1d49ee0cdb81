"""What a build is told of this host's proxy and mirror: pip's own sources, in pip's own order."""

import stat
from pathlib import Path

import pytest

from deploy.environment import mirrors


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A user's folder with pip's configuration and two files of certificates."""
    folder = tmp_path / "home"
    (folder / ".config" / "pip").mkdir(parents=True)
    for name in ("site.pem", "other.pem"):
        (folder / name).write_text("-----BEGIN CERTIFICATE-----\n")
    (folder / ".config" / "pip" / "pip.conf").write_text(
        f"[global]\nindex-url = https://mirror/simple\ncert = {folder}/site.pem\n"
        "find-links = /wheels/of/this/host\n"
    )
    return folder


def found(home: Path, out: Path, **environ: str) -> dict[str, str]:
    return mirrors.found({"HOME": str(home), **environ}, out)


def test_pips_own_configuration_is_enough(home: Path, tmp_path: Path) -> None:
    """Certificates and index are taken from it; folders of this host are not."""
    made = found(home, tmp_path / "out")
    assert made["CA_FILE"] == str(home / "site.pem")
    written = Path(made["PIP_CONFIG"])
    assert "index-url = https://mirror/simple" in written.read_text().splitlines()
    assert "/wheels" not in written.read_text()
    assert stat.S_IMODE(written.stat().st_mode) == 0o600  # an address may hold a password


def test_variables_of_pip_go_before_its_files(home: Path, tmp_path: Path) -> None:
    """As pip has it; of a file that PIP_CONFIG_FILE names as well."""
    more = home / "more.conf"
    more.write_text(
        "[install]\ntrusted-host = mirror\n[global]\nindex_url = https://third/simple\n"
    )
    environ = {"PIP_CERT": str(home / "other.pem"), "PIP_INDEX_URL": "https://second/simple"}
    made = found(home, tmp_path / "out", PIP_CONFIG_FILE=str(more), **environ)
    assert made["CA_FILE"] == str(home / "other.pem")
    lines = Path(made["PIP_CONFIG"]).read_text().splitlines()
    assert {"index-url = https://second/simple", "trusted-host = mirror"} <= set(lines)
    made = found(home, tmp_path / "out", PIP_CONFIG_FILE=str(more))
    assert "https://third/simple" in Path(made["PIP_CONFIG"]).read_text()


def test_a_host_without_a_proxy_is_told_nothing(tmp_path: Path) -> None:
    """Neither variable is made, nor a file; pip's own defaults hold."""
    assert found(tmp_path, tmp_path / "out", PIP_CONFIG_FILE="/dev/null") == {}
    assert not (tmp_path / "out").exists()


def test_certificates_of_the_system_are_the_last_resort(home: Path, tmp_path: Path) -> None:
    """SSL_CERT_FILE is what pip falls back to; one that is not there is nobody's."""
    environ = {"PIP_CONFIG_FILE": "/dev/null", "SSL_CERT_FILE": str(home / "other.pem")}
    assert found(home, tmp_path, **environ) == {"CA_FILE": str(home / "other.pem")}
    assert found(home, tmp_path, PIP_CONFIG_FILE="/dev/null", PIP_CERT="/none.pem") == {}


def test_a_configuration_that_is_given_is_left_alone(home: Path, tmp_path: Path) -> None:
    """PIP_CONFIG of the user is not written over."""
    assert "PIP_CONFIG" not in found(home, tmp_path / "out", PIP_CONFIG="/mine/pip.conf")


def test_a_broken_configuration_is_pips_to_refuse(home: Path, tmp_path: Path) -> None:
    """What it says is left out, and nothing fails here."""
    (home / ".config" / "pip" / "pip.conf").write_text("index-url = of no section\n")
    assert "https" not in str(found(home, tmp_path / "out", PIP_INDEX_URL=""))
