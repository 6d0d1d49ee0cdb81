"""Commands of other projects' programs: the ones that the documents tell, with their options."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from deploy import recipe
from tests.support.documents import ROOT, Command
from tests.support.told_variables import check_environment, interpolated, job_variables
from tests.support.told_words import OPTION, Wrong, filled

# Programs of others: their subcommands and the options of them that the documents use.
OTHERS: Mapping[tuple[str, ...], frozenset[str]] = {
    words: frozenset(options)
    for words, options in {
        ("apptainer", "build"): (),
        ("apptainer", "exec"): ("--bind", "--env", "--pwd"),
        ("diff",): ("-p", "-u"),
        ("docker", "build"): ("--build-arg", "--network", "-f", "-t"),
        ("docker", "compose"): ("--env-file", "-f"),
        ("docker", "compose", "exec"): (),
        ("docker", "compose", "restart"): (),
        ("docker", "compose", "up"): ("--wait", "-d"),
        ("docker", "exec"): (),
        ("docker", "load"): ("-i",),
        ("docker", "pull"): (),
        ("docker", "run"): ("--entrypoint", "--init", "--no-healthcheck", "--rm"),
        ("docker", "save"): ("-o",),
        ("docker", "tag"): (),
        ("git", "clone"): (),
        ("git", "pull"): (),
        ("gzip",): (),
        ("k3s", "ctr", "images", "import"): (),
        ("kind", "load", "docker-image"): (),
        ("kubectl", "apply"): ("-f", "-k"),
        ("kubectl", "config", "set-context"): ("--current", "--namespace"),
        ("kubectl", "cordon"): (),
        ("kubectl", "create", "configmap"): ("--from-literal",),
        ("kubectl", "create", "secret", "generic"): ("--from-literal",),
        ("kubectl", "describe"): (),
        ("kubectl", "drain"): ("--delete-emptydir-data", "--ignore-daemonsets"),
        ("kubectl", "exec"): ("-c",),
        ("kubectl", "get"): ("--field-selector", "-A", "-o"),
        ("kubectl", "logs"): ("--previous", "-c"),
        ("kubectl", "rollout", "status"): (),
        ("kubectl", "rollout", "undo"): (),
        ("kubectl", "taint"): (),
        ("kubectl", "uncordon"): (),
        ("kubectl", "wait"): ("--for", "--timeout"),
        ("minikube", "image", "load"): (),
        ("pip", "download"): ("--no-deps", "--require-hashes", "-d", "-r"),
        ("pip", "install"): (),
        ("sbatch",): ("--gpus", "--time"),
        ("scancel",): ("--batch", "--signal"),
        ("scontrol", "requeue"): (),
        ("squeue",): ("--job",),
        ("vi",): (),
        ("vllm", "serve"): (),
    }.items()
}
PROGRAMS = frozenset({"curl", "make", "python", "python3", *(words[0] for words in OTHERS)})


def judge_other(command: Command) -> str:
    """The program's name. Raises Wrong for what it does not take."""
    words = command.words
    if words[:2] == ("docker", "compose"):
        files = compose_files(words)
        check_environment(command, interpolated(*files) if files else ())
        _service(words, files)
    elif words[0] == "sbatch":
        check_environment(command, job_variables(ROOT / words[-1]))
    else:
        check_environment(command, ())
    _options(words, command)
    if words[0] == "kubectl":
        _kubectl(words)
    if words[:2] == ("pip", "install") and any(word.startswith("dspark") for word in words):
        raise Wrong("pip install: no index has this project; name the checkout, as in '.[grpc]'")
    if words[:2] == ("docker", "build"):
        _build(words)
    if words[:2] == ("vllm", "serve"):
        known = recipe.load().vllm.vocabulary.flags
        for word in words[2:]:
            option = OPTION.match(word)
            if option and option[1].removeprefix("--") not in known:
                raise Wrong(f"{option[1]}: is no flag of vllm serve")
    return words[0]


def subcommand(words: Sequence[str]) -> tuple[str, ...]:
    """The longest row of OTHERS that the words begin with, options before it left out."""
    plain = list(words)
    if tuple(plain[:2]) == ("docker", "compose"):
        head, tail = plain[:2], plain[2:]
        while tail and tail[0] in OTHERS["docker", "compose"]:
            tail = tail[2:]
        plain = head + tail
    found = [known for known in OTHERS if tuple(plain[: len(known)]) == known]
    if not found:
        raise Wrong(
            f"{' '.join(plain[:3])}: is not among the commands that the documents use; mend it, or"
            " add it to OTHERS in tests/support/told_programs.py"
        )
    return max(found, key=len)


def _options(words: Sequence[str], command: Command) -> None:
    known = subcommand(words)
    if known == ("vllm", "serve"):
        return
    if known == ("docker", "compose") and len(words) > 2:
        raise Wrong(f"{command.text}: no subcommand of docker compose that OTHERS knows")
    allowed = OTHERS[known] | (OTHERS["docker", "compose"] if known[1:2] == ("compose",) else set())
    unknown = options(words) - allowed
    if unknown:
        raise Wrong(
            f"{' '.join(known)} {' '.join(sorted(unknown))}: is not among the options that the"
            " documents use; mend it, or add it to OTHERS in tests/support/told_programs.py"
        )


def options(words: Sequence[str]) -> set[str]:
    """The options among the words; letters that stand together behind one dash are taken apart."""
    found: set[str] = set()
    for word in words:
        if match := OPTION.match(filled(word)):
            is_long = match[1].startswith("--")
            found |= {match[1]} if is_long else {f"-{letter}" for letter in match[1][1:]}
    return found


def compose_files(words: Sequence[str]) -> list[Path]:
    """The files of a `docker compose` command. Raises Wrong for one that is not there."""
    files = [
        ROOT / word for option, word in itertools.pairwise(words) if option in ("-f", "--file")
    ]
    for file in files:
        if not file.is_file():
            raise Wrong(f"{file.relative_to(ROOT)}: is not there")
    return files


def _service(words: Sequence[str], files: Sequence[Path]) -> None:
    text = "".join(file.read_text("utf-8") for file in files)
    for verb, name in itertools.pairwise(words):
        if verb in ("exec", "restart") and f"\n  {name}:\n" not in text:
            raise Wrong(f"docker compose {verb} {name}: no such service in {len(files)} files")


def check_paths(words: Sequence[str]) -> None:
    """Raises Wrong for a path below a folder of the checkout that is not there."""
    folders = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"build", "dist"}
    for word in words:
        first, slash, _ = word.partition("/")
        if slash and first in folders and not any(ROOT.glob(word)):
            raise Wrong(f"{word}: is not there")


def _build(words: Sequence[str]) -> None:
    texts = "".join(p.read_text("utf-8") for p in (ROOT / "docker").glob("Dockerfile*"))
    for option, value in itertools.pairwise(words):
        name = value.partition("=")[0]
        if option == "--build-arg" and not re.search(rf"^ARG {name}\b", texts, re.MULTILINE):
            raise Wrong(f"--build-arg {name}: no Dockerfile has such an ARG")


@functools.cache
def deployments() -> frozenset[str]:
    """Names of the Deployments that the overlays make."""
    k8s = ROOT / "deploy/k8s"
    name = yaml.safe_load((k8s / "base/deployment.yaml").read_text("utf-8"))["metadata"]["name"]
    overlays = k8s.glob("overlays/*/kustomization.yaml")
    return frozenset(
        name + yaml.safe_load(path.read_text("utf-8"))["nameSuffix"] for path in overlays
    )


def _kubectl(words: Sequence[str]) -> None:
    base = (ROOT / "deploy/k8s/base/deployment.yaml").read_text("utf-8")
    for before, word in itertools.pairwise(words):
        if before == "-k" and not (ROOT / word / "kustomization.yaml").is_file():
            raise Wrong(f"{word}: has no kustomization.yaml")
        if before == "-f" and not (ROOT / word).is_file():
            raise Wrong(f"{word}: is not there")
        kind, slash, name = word.partition("/")
        if slash and kind == "deployment" and filled(name) not in deployments():
            raise Wrong(f"{word}: no overlay makes it; it is one of {', '.join(deployments())}")
        if before == "-c" and f"- name: {word}\n" not in base:
            raise Wrong(f"-c {word}: the pod has no such container")
        if before == "generic" and f"secretName: {word}\n" not in base:
            raise Wrong(f"secret {word}: the deployment does not read it")
        if before == "configmap" and f"configMapRef:\n                name: {word}\n" not in base:
            raise Wrong(f"configmap {word}: the deployment does not read it")
        option = OPTION.match(word)
        if "secret" in words and option and option[1] in ("--from-literal", "--from-file"):
            key = (option[2] or "").partition("=")[0]
            if not re.search(rf"(key: |/dspark/){re.escape(key)}$", base, re.MULTILINE):
                raise Wrong(f"{word}: the deployment reads no {key} of the secret")
