"""What the drills of a cluster say before they begin, and how an older server is spoken to."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import kubelet, older_kubernetes
from tests.support.cluster import NoClusterError, cluster
from tests.support.documents import ROOT
from tests.support.manifests import EVERY, K8S, REHEARSAL, own_kinds, render

OLD = 20


def kubeconfig(folder: Path) -> Path:
    """A file that names a server where nobody listens."""
    named = {"cluster": {"server": "https://127.0.0.1:9"}, "user": {}}
    named |= {"context": {"cluster": "one", "user": "one"}}
    lists = {f"{kind}s": [{"name": "one", kind: value}] for kind, value in named.items()}
    whole = {"apiVersion": "v1", "kind": "Config", "current-context": "one", **lists}
    path = folder / "kubeconfig"
    path.write_text(json.dumps(whole))
    return path


def test_a_cluster_is_asked_for_by_name(tmp_path: Path) -> None:
    """Only that of KUBECONFIG is drilled on, never whichever a user's kubectl would take; each thing
    that is missing is one line."""
    refused = {
        "": "KUBECONFIG: is not set; name the file of a cluster to drill on",
        "/nowhere": "KUBECONFIG: got /nowhere; give one file that is there",
    }
    for value, line in refused.items():
        with pytest.raises(NoClusterError) as seen, cluster({"KUBECONFIG": value}):
            pass
        assert str(seen.value) == line
    path = str(kubeconfig(tmp_path))
    with pytest.raises(NoClusterError) as seen, cluster({"KUBECONFIG": path}):
        pass
    (line,) = str(seen.value).splitlines()
    assert line.startswith(f"KUBECONFIG: {path}: ") and line.endswith("; start the cluster")


def test_a_run_without_a_cluster_ends_with_one_line() -> None:
    """And with an exit code of its own: nothing was tested, which is no success."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    ended = subprocess.run(
        [*command, "-m", "kubernetes", "tests/kubernetes"],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if k != "KUBECONFIG"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 2
    assert "test-kubernetes: KUBECONFIG: is not set;" in ended.stdout
    assert "Traceback" not in ended.stdout + ended.stderr


@pytest.mark.parametrize("folder", EVERY)
def test_a_server_that_is_new_enough_gets_the_manifests_as_they_are(folder: str) -> None:
    """From the oldest release that we name on nothing is said otherwise."""
    resources = own_kinds(render(folder))
    assert older_kubernetes.said_for(30, resources) == (resources, [])


def test_the_page_lists_every_change_and_no_other() -> None:
    """What 1.20 was told otherwise stands on the page of its drills, word for word; each change is
    made somewhere, and none is left out."""
    made = {text for f in EVERY for text in older_kubernetes.said_for(OLD, own_kinds(render(f)))[1]}
    listed = [change.text for change in older_kubernetes.CHANGES]
    assert made == set(listed)
    page = (K8S / "DRILLS.md").read_text("utf-8")
    assert [text for text in listed if f"- {text}" not in page] == []


def test_what_an_older_server_is_told_has_the_same_containers_and_probes() -> None:
    """The sidecar stands before the server, with all that it had but its restart policy."""
    before = next(r for r in render(REHEARSAL) if r["kind"] == "Deployment")
    (after,), _ = older_kubernetes.said_for(OLD, [before])
    old, new = before["spec"]["template"]["spec"], after["spec"]["template"]["spec"]
    (sidecar,) = old["initContainers"]
    assert new["containers"][0] == {k: v for k, v in sidecar.items() if k != "restartPolicy"}
    assert new["initContainers"] == []
    asked = [{**vars(probe), "grace_s": 0} for probe in kubelet.probes(old)]
    assert [{**vars(probe), "grace_s": 0} for probe in kubelet.probes(new)] == asked
