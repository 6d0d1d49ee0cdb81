"""How this host's pip reaches its packages, for the pip inside a build, which sees none of it.

Behind a TLS proxy or on a mirror the host is told so already: by PIP_CERT and SSL_CERT_FILE, by
PIP_INDEX_URL and the like, and in pip's configuration files. Paths of this host, such as wheel
folders, mean nothing in a build and are left out.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from deploy.files import write_whole

#: What of pip's configuration says where packages come from.
KEYS = ("index-url", "extra-index-url", "trusted-host", "proxy")
SECTIONS = ("global", "install")
MODE = 0o600  # an address may hold a password


def found(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """CA_FILE and PIP_CONFIG as this host's pip would have them, without what it has not been told.

    The configuration is written into `folder`. Raises OSError if it cannot be.
    """
    told = _configured(environ)
    made = {}
    for certificates in (environ.get("PIP_CERT"), told.get("cert"), environ.get("SSL_CERT_FILE")):
        if certificates and Path(certificates).is_file():
            made["CA_FILE"] = str(Path(certificates).resolve())
            break
    lines = [f"{key} = {' '.join(told[key].split())}" for key in KEYS if told.get(key)]
    if lines and not environ.get("PIP_CONFIG"):
        path = folder / "pip.conf"
        write_whole(path, "\n".join(["[global]", *lines, ""]), MODE)
        made["PIP_CONFIG"] = str(path)
    return made


def _configured(environ: Mapping[str, str]) -> dict[str, str]:
    """pip's options of KEYS and `cert`, each source over the one before: files, variables."""
    told: dict[str, str] = {}
    for path in _files(environ):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue  # pip itself refuses it, in words of its own
        for section in SECTIONS:
            if parser.has_section(section):
                told |= {k.replace("_", "-"): v for k, v in parser.items(section)}
    for key in KEYS:
        value = environ.get(f"PIP_{key.upper().replace('-', '_')}")
        told |= {key: value} if value else {}
    return told


def _files(environ: Mapping[str, str]) -> Iterator[Path]:
    """Where pip looks on Linux, the strongest last; none where PIP_CONFIG_FILE is /dev/null."""
    own = environ.get("PIP_CONFIG_FILE")
    if own == os.devnull:
        return
    home = environ.get("HOME")
    yield Path("/etc/xdg/pip/pip.conf")
    yield Path("/etc/pip.conf")
    if home:
        yield Path(home, ".pip/pip.conf")
        yield Path(environ.get("XDG_CONFIG_HOME") or Path(home, ".config"), "pip/pip.conf")
    if own:
        yield Path(own)
