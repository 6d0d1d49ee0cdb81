"""The Kubernetes manifests: valid, in step with the recipe, and judged by a kubelet."""

import ast
import importlib.util
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from deploy import plan, recipe
from deploy.containers import cli as host
from deploy.rehearsal import image
from healthcheck import verdict
from healthcheck.client import exposition
from healthcheck.client.answers import Answer, Failure, FailureKind
from healthcheck.client.exposition import EngineSample, Exposition, Speculation
from healthcheck.client.listing import Listing
from healthcheck.flights import told
from healthcheck.judge import Finding, Outcome
from healthcheck.verdict import (
    Generation,
    Outstanding,
    Policy,
    Reading,
    State,
    Surfaces,
    Want,
)
from tests.support import kubelet, stops, tools
from tests.support.documents import ROOT
from tests.support.manifests import (
    AMD,
    EVERY,
    EXAMPLES,
    K8S,
    REHEARSAL,
    RENDERED,
    own_kinds,
    render,
    schemas,
    with_components,
)
from tests.support.waiting import PATIENCE_S, until

RECIPE = recipe.load()
OLDEST, NEWEST = "1.30", "1.37"  # of Kubernetes


def one(folder: str, kind: str) -> dict[str, Any]:
    """The folder's resource of a kind; of several the server's own."""
    found = [r for r in render(folder) if r["kind"] == kind]
    return next((r for r in found if "picker" not in r["metadata"]["name"]), found[0])


def pod_template(folder: str) -> dict[str, Any]:
    """The template of the pod that serves."""
    if any(r["kind"] == "LeaderWorkerSet" for r in render(folder)):
        group = one(folder, "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
        return group["leaderTemplate"]  # type: ignore[no-any-return]
    return one(folder, "Deployment")["spec"]["template"]  # type: ignore[no-any-return]


def pod(folder: str) -> dict[str, Any]:
    """The spec of the pod that serves."""
    return pod_template(folder)["spec"]  # type: ignore[no-any-return]


def server(folder: str) -> dict[str, Any]:
    """Its vLLM container."""
    return next(c for c in pod(folder)["containers"] if c["name"] == "server")


def sidecar(folder: str) -> dict[str, Any]:
    """Its health container."""
    return next(c for c in pod(folder)["initContainers"] if c["name"] == "health")


# --- valid ----------------------------------------------------------------------------------------


def test_rendered_manifests_are_strictly_valid(tmp_path: Path) -> None:
    """Kubernetes' own kinds fit the oldest release we name and the newest known, to the field."""
    files, count = [], 0
    for folder in EVERY:
        files.append(tmp_path / f"{folder.replace('/', '-')}.yaml")
        files[-1].write_text(yaml.safe_dump_all(own_kinds(render(folder))))
        count += len(own_kinds(render(folder)))
    releases = ["-k", OLDEST, "-k", NEWEST]
    checked = tools.run("kubernetes-validate", "--strict", *releases, *files)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.count("passed") == 2 * count
    assert f"Kubernetes {OLDEST} or newer" in (K8S / "README.md").read_text()


def test_custom_resources_fit_their_definitions() -> None:
    """Every resource of an operator uses only fields that were looked up in its definition."""
    found = [r for folder in EXAMPLES for r in render(folder) if r["kind"] in schemas()]
    monitor = K8S / "components/service-monitor/service-monitor.yaml"
    found.append(yaml.safe_load(monitor.read_text()))
    assert {r["kind"] for r in found} == set(schemas())
    for resource in found:
        jsonschema.validate(resource, schemas()[resource["kind"]])


@pytest.mark.parametrize(
    ("kind", "example"),
    [
        *(("InferencePool", "gateway"), ("HTTPRoute", "gateway")),
        *(("LeaderWorkerSet", "multi-node"), ("ScaledObject", "keda")),
    ],
)
def test_a_field_nobody_looked_up_is_refused(kind: str, example: str) -> None:
    """The written-down schemas are closed: a new field has to be looked up first."""
    folder = f"examples/{example}"
    resource = json.loads(json.dumps(one(folder, kind)))
    resource["spec"]["extensionRef"] = {"name": "old"}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(resource, schemas()[kind])


def with_component(component: str, scratch: Path) -> list[dict[str, Any]]:
    """The resources of a user's own folder that adds a component to an overlay."""
    return with_components("overlays/mi355x", [component], scratch)


def test_the_service_monitor_component_adds_itself_to_an_overlay(tmp_path: Path) -> None:
    """A user's overlay with the component scrapes both ports under the jobs the rules know."""
    monitor = next(
        r for r in with_component("service-monitor", tmp_path) if r["kind"] == "ServiceMonitor"
    )
    jobs = {e["port"]: e["relabelings"][0]["replacement"] for e in monitor["spec"]["endpoints"]}
    assert jobs == {"serve": "vllm", "health": "dspark-health"}


def test_the_no_speculation_component_tells_server_and_sidecar(tmp_path: Path) -> None:
    """The documented switch reaches both containers, so that no draft is missed afterwards."""
    rendered = with_component("no-speculation", tmp_path)
    spec = next(r for r in rendered if r["kind"] == "Deployment")["spec"]["template"]["spec"]
    for container in (*spec["containers"], *spec["initContainers"]):
        assert {"name": "DSPARK_SPECULATION", "value": "off"} in container["env"]


def test_the_graphs_component_tells_the_server(tmp_path: Path) -> None:
    """The documented switch reaches the container that serves with it."""
    rendered = with_component("graphs", tmp_path)
    spec = next(r for r in rendered if r["kind"] == "Deployment")["spec"]["template"]["spec"]
    assert {"name": "DSPARK_GRAPHS", "value": "on"} in spec["containers"][0]["env"]
    assert spec["containers"][0]["name"] == "server"


def test_the_surge_component_replaces_no_server_before_the_next_is_ready(tmp_path: Path) -> None:
    """Two servers and a third for the roll-out; nodes are drained of one at a time."""
    rendered = with_component("surge", tmp_path)
    spec = next(r for r in rendered if r["kind"] == "Deployment")["spec"]
    budget = next(r for r in rendered if r["kind"] == "PodDisruptionBudget")["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert spec["replicas"] == 2 > budget["maxUnavailable"] == 1


@pytest.mark.parametrize("folder", [*(f"overlays/{name}" for name in AMD), "examples/multi-node"])
def test_what_an_operator_sets_reaches_server_and_sidecar(folder: str) -> None:
    """The documented ConfigMap, which need not be there; time-outs are both containers'."""
    source = {"configMapRef": {"name": "dspark-env", "optional": True}}
    for container in (server(folder), sidecar(folder)):
        assert container["envFrom"][0] == source
    assert "create configmap dspark-env --from-literal=" in (K8S / "README.md").read_text()


# --- in step with the recipe ----------------------------------------------------------------------


def test_there_is_one_overlay_for_each_amd_profile() -> None:
    """Profiles and overlays have the same names; of the rehearsals the one with images has one."""
    names = sorted(p.name for p in (K8S / "overlays").iterdir())
    assert names == sorted([*AMD, host.REHEARSAL]) and f"overlays/{host.REHEARSAL}" == REHEARSAL


@pytest.mark.parametrize("name", AMD)
def test_an_overlay_serves_its_profile_on_its_cards(name: str) -> None:
    """Both containers get the profile's name, and the server as many cards as the recipe says."""
    gpu = RECIPE.profile(name).gpu
    assert gpu is not None
    folder = f"overlays/{name}"
    for container in (server(folder), sidecar(folder)):
        assert {"name": "DSPARK_PROFILE", "value": name} in container["env"]
    assert server(folder)["resources"]["limits"] == {"amd.com/gpu": gpu.count}
    assert one(folder, "Deployment")["metadata"]["name"] == f"dspark-{name}"


DEVICE_TABLE = "_ROCM_DEVICE_ID_NAME_MAP"
# Not in vLLM 0.27.1's table; a later one has them (vLLM's own test of its ROCm device names).
LATER_DEVICES = {"75a0": "AMD_Instinct_MI350X", "75a3": "AMD_Instinct_MI355X"}


def device_names() -> dict[str, str]:
    """vLLM's table of PCI device ids, read from its source without importing it."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("vllm is not installed here: run `make test`")
    source = Path(next(iter(spec.submodule_search_locations))) / "platforms" / "rocm.py"
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == DEVICE_TABLE:
            table = ast.literal_eval(ast.unparse(node.value or node))
            return {k.removeprefix("0x"): v for k, v in table.items()} | LATER_DEVICES
    raise AssertionError("vLLM has no table of device ids any more")


@pytest.mark.parametrize("name", AMD)
def test_an_overlay_selects_nodes_by_the_device_id_of_its_card(name: str) -> None:
    """The AMD labeller's device id is the one under which vLLM knows the profile's card."""
    gpu = RECIPE.profile(name).gpu
    assert gpu is not None
    selector = pod(f"overlays/{name}")["nodeSelector"]
    assert device_names()[selector["amd.com/gpu.device-id"]] == gpu.name.replace(" ", "_")


@pytest.mark.parametrize("folder", EVERY)
def test_ports_are_those_of_the_recipe(folder: str) -> None:
    """Containers, services and the inference pool name the recipe's two ports and no other."""
    serve, health = RECIPE.ports.serve, RECIPE.ports.health
    assert [p["containerPort"] for p in server(folder)["ports"]] == [serve]
    assert [p["containerPort"] for p in sidecar(folder)["ports"]] == [health]
    service = one(folder, "Service")["spec"]["ports"]
    assert [(p["name"], p["port"]) for p in service] == [("serve", serve), ("health", health)]
    for resource in render(folder):
        if resource["kind"] == "InferencePool":
            assert resource["spec"]["targetPorts"] == [{"number": serve}]


@pytest.mark.parametrize("folder", RENDERED)
def test_images_and_caches_carry_the_pinned_version(folder: str) -> None:
    """Tags of our images and the folder of built kernels name the vLLM of the recipe."""
    version = RECIPE.vllm.version
    assert server(folder)["image"].endswith(f":{version}")
    assert sidecar(folder)["image"].endswith(f":{version}")
    mounts = {m["name"]: m for m in server(folder)["volumeMounts"]}
    assert mounts["cache"]["subPathExpr"] == "vllm-$(RELEASE)"
    for container in (server(folder), sidecar(folder)):
        names = [s["configMapRef"]["name"] for s in container["envFrom"] if "configMapRef" in s]
        (name,) = (n for n in names if n.startswith("dspark-release"))
        data = {r["metadata"]["name"]: r.get("data") for r in render(folder)}
        assert data[name] == {"RELEASE": version}


def test_no_manifest_repeats_what_the_recipe_says() -> None:
    """No model, revision, environment variable or speculative setting stands in a manifest."""
    said = {"speculative-config"}
    for profile in (RECIPE.profile(name) for name in AMD):
        said |= {profile.model.id, str(profile.model.revision)} | set(profile.env)
    files = list(K8S.rglob("*.yaml"))
    assert len(files) > 20
    for file in files:
        code = "\n".join(line.split("#")[0] for line in file.read_text().splitlines())
        assert not [word for word in said if word in code], file


@pytest.mark.parametrize("role", ["leaderTemplate", "workerTemplate"])
def test_the_groups_own_flags_make_a_plan(role: str) -> None:
    """What the multi-node example adds is known to vLLM, changes no recipe value, breaks no rule."""
    group = one("examples/multi-node", "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    known = {"LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "1", "LWS_LEADER_ADDRESS": "leader.group"}
    arguments = [
        re.sub(r"\$\((\w+)\)", lambda match: known[match[1]], word)
        for word in group[role]["spec"]["containers"][0]["args"]
    ]
    made = plan.make(RECIPE.profile("mi355x"), arguments)
    assert "--data-parallel-address" in made.argv
    assert not {w.split("=")[0].lstrip("-") for w in arguments} & set(
        RECIPE.profile("mi355x").serve
    )
    assert not [w for w in made.warnings if "overrides" in w]
    assert group["size"] == 2


def test_servers_without_an_example_take_no_flags() -> None:
    """An overlay's server runs the recipe's plan and nothing else."""
    for name in AMD:
        assert "args" not in server(f"overlays/{name}")
        assert "command" not in server(f"overlays/{name}")


@pytest.mark.parametrize("folder", RENDERED)
def test_times_contain_those_of_the_recipe(folder: str) -> None:
    """Start budget, roll-out deadline and grace period leave the recipe's budgets their time."""
    profile = RECIPE.profile("mi355x")
    by_kind = {p.kind: p for p in kubelet.probes(pod(folder)) if p.container == "server"}
    startup = by_kind["startup"]
    budget = startup.period_s * startup.failure_threshold
    assert budget == profile.health.start_budget_s
    grace = pod(folder)["terminationGracePeriodSeconds"]
    assert grace > stops.hook_s(stalled=False, profile=profile) + stops.signal_s(profile)
    for resource in render(folder):
        if resource["metadata"]["name"] == "dspark-picker" and resource["kind"] == "Deployment":
            its = resource["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
            assert its == grace  # it picks for them to the end
    if folder != "examples/multi-node":
        deadline = one(folder, "Deployment")["spec"]["progressDeadlineSeconds"]
        assert deadline > startup.initial_delay_s + budget
    # first asked when a killed server's old verdict has certainly become DEAD
    settled = profile.health.dead_after_s + profile.health.scrape_interval_s
    assert startup.initial_delay_s > settled


@pytest.mark.parametrize("folder", EVERY)
def test_no_pod_stays_where_the_gpu_operator_remediates(folder: str) -> None:
    """Of the taints of a node of cards one is tolerated, that it is one; amd-gpu-unhealthy is not."""
    assert [t.get("key") for t in pod(folder)["tolerations"]] == ["amd.com/gpu"]


@pytest.mark.parametrize("folder", EVERY)
def test_a_restart_by_liveness_leaves_a_flight_its_time(folder: str) -> None:
    """What kubelet gives a stalled server, its preStop hook within, is above the hook's questions,
    the signal that is held for the stacks and the writing of the archive."""
    profile = RECIPE.profile("mi355x")
    grace = server(folder)["livenessProbe"]["terminationGracePeriodSeconds"]
    assert grace > stops.hook_s(stalled=True, profile=profile) + stops.flight_s()


@pytest.mark.parametrize("folder", EVERY)
def test_a_stop_waits_for_what_runs(folder: str) -> None:
    """Before its SIGTERM the server's container runs the command that waits for the last answer,
    with the profile's own budget; a worker of a group waits for its leader's."""
    hook = server(folder)["lifecycle"]["preStop"]["exec"]["command"]
    assert hook == ["python3", "-m", "healthcheck", "idle"]
    for resource in render(folder):
        if resource["kind"] == "LeaderWorkerSet":
            worker = resource["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]
            (_, _, its) = worker["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
            target = f"http://$LWS_LEADER_ADDRESS:{RECIPE.ports.serve}"
            assert its == f'exec {" ".join(hook)} --target "{target}"'


def test_scaling_follows_the_servers_own_queue_and_never_to_none() -> None:
    """KEDA alone says how many; it asks Prometheus for a metric that the server exports, under the
    job by which it is scraped."""
    scaled = one("examples/keda", "ScaledObject")["spec"]
    deployment = one("examples/keda", "Deployment")
    assert scaled["scaleTargetRef"] == {"name": deployment["metadata"]["name"]}
    assert "replicas" not in deployment["spec"] and scaled["minReplicaCount"] == 1
    query = scaled["triggers"][0]["metadata"]["query"]
    assert f'{exposition.WAITING}{{job="vllm"}}' in query
    monitor = one("examples/keda", "ServiceMonitor")["spec"]["endpoints"]
    assert monitor[0]["relabelings"][0] == {"targetLabel": "job", "replacement": "vllm"}


def test_the_job_fills_the_servers_claim_by_the_servers_image() -> None:
    """It runs what `make weights` runs, writes where the server reads, and asks for no card; no
    server starts beside it. It is not behind the policy that keeps the server from the network."""
    folder = "examples/weights"
    job = one(folder, "Job")["spec"]["template"]
    (container,) = job["spec"]["containers"]
    assert one(folder, "Deployment")["spec"]["replicas"] == 0
    assert container["image"] == server(folder)["image"]
    assert container["args"] == ["python3", "-m", "deploy", "weights"]
    assert container["env"][0] == {"name": "DSPARK_PROFILE", "value": "mi355x"}
    assert "limits" not in container["resources"]
    (mount,) = container["volumeMounts"]
    served = next(m for m in server(folder)["volumeMounts"] if m["name"] == mount["name"])
    assert mount == {k: v for k, v in served.items() if k != "readOnly"}
    volumes = {v["name"]: v for v in pod(folder)["volumes"]}
    assert job["spec"]["volumes"] == [volumes["weights"]]
    selected = one(folder, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"]
    assert not selected.items() <= job["metadata"]["labels"].items()


def test_the_rehearsal_is_the_overlays_pod_around_images_that_hold_everything() -> None:
    """It differs from a card's in the images, what cards need, the claims and the listening address;
    the images are those that `make rehearsal-images` makes, whatever the site's are called."""
    card, here = json.loads(json.dumps([pod("overlays/mi355x"), pod(REHEARSAL)]))
    assert "PersistentVolumeClaim" not in {r["kind"] for r in render(REHEARSAL)}
    assert here["containers"][0].pop("image") == image.SERVER_ON_NODES
    assert here["initContainers"][0].pop("image") == image.HEALTH_ON_NODES
    assert here["containers"][0].pop("args") == ["--host=0.0.0.0"]
    for spec in (card, here):
        for container in (*spec["containers"], *spec["initContainers"]):
            container.pop("image", None)
            container["envFrom"].pop()  # named by a digest and the overlay
            container["env"] = [e for e in container["env"] if e["name"] != "DSPARK_PROFILE"]
        spec["containers"][0].pop("resources")
        spec["volumes"] = [v["name"] for v in spec["volumes"] if v["name"] != "weights"]
        mounts = spec["containers"][0]["volumeMounts"]
        mounts[:] = [m for m in mounts if m["name"] != "weights"]
        security = spec["containers"][0]["securityContext"]
        security.pop("seccompProfile", None)
        security["capabilities"].pop("add")
    del card["nodeSelector"]
    assert here == card


def test_the_rehearsals_pod_fits_a_namespace_that_enforces_baseline() -> None:
    """It asks for no capability, no host's folder and no open seccomp profile."""
    assert beyond_baseline(pod(REHEARSAL)) == set()
    assert server(REHEARSAL)["securityContext"]["capabilities"] == {"add": [], "drop": ["ALL"]}


# --- the pod --------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", EVERY)
def test_probes_are_wired_as_the_contract_says(folder: str) -> None:
    """Start-up, liveness and readiness of the server ask the sidecar, whose own is that it turns."""
    health = RECIPE.ports.health
    wired = {
        (p.container, p.kind): (p.port, p.path, p.period_s, p.failure_threshold, p.timeout_s)
        for p in kubelet.probes(pod(folder))
    }
    assert wired == {
        ("server", "startup"): (health, "/startupz", 10, 720, 3),
        ("server", "liveness"): (health, "/livez/engine", 15, 8, 5),
        ("server", "readiness"): (health, "/readyz", 5, 3, 3),
        ("health", "liveness"): (health, "/livez", 15, 4, 5),
    }


@pytest.mark.parametrize("folder", EVERY)
def test_the_sidecar_can_do_nothing_but_look(folder: str) -> None:
    """It is native, not root, without capabilities, and writes in one folder: that the server is
    stuck, where its parent looks for it."""
    security = sidecar(folder)["securityContext"]
    assert sidecar(folder)["restartPolicy"] == "Always"
    assert security["runAsNonRoot"] is True and security["runAsUser"] > 0
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    (own,) = (m for m in sidecar(folder)["volumeMounts"] if not m.get("readOnly"))
    asked = told.file(Path("/var/log/dspark-rocm/server.log"))
    assert own == {"name": "log", "mountPath": str(asked.parent), "subPath": asked.parent.name}
    mounts = {m["name"]: m for m in server(folder)["volumeMounts"]}
    assert mounts["log"] == {"name": "log", "mountPath": str(asked.parent.parent)}


# Capabilities that a container may add under Pod Security `baseline` (Kubernetes' documentation).
BASELINE = {
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD"),
    *("NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
}


def beyond_baseline(spec: dict[str, Any]) -> set[str]:
    """What of a pod only a privileged namespace admits; of the kinds of field that ours has."""
    found = {name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)}
    found |= {f"hostPath {v['name']}" for v in spec["volumes"] if "hostPath" in v}
    for container in (*spec["containers"], *spec.get("initContainers", ())):
        security = container["securityContext"]
        found |= {"privileged"} if security.get("privileged") else set()
        found |= {"hostPort" for port in container.get("ports", ()) if "hostPort" in port}
        found |= set(security["capabilities"].get("add", ())) - BASELINE
        profile = {**spec["securityContext"], **security}["seccompProfile"]["type"]
        found |= {profile} - {"RuntimeDefault", "Localhost"}
    return found


@pytest.mark.parametrize("folder", RENDERED)
def test_the_namespace_admits_what_the_pod_asks_for_and_the_readme_says_so(folder: str) -> None:
    """Two things are beyond `baseline`; both are said, with the namespace that is labelled for it."""
    (namespace,) = yaml.safe_load_all((K8S / "namespace.yaml").read_text())
    label = namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    readme = (K8S / "README.md").read_text()
    assert beyond_baseline(pod(folder)) == {"SYS_PTRACE", "Unconfined"} and label == "privileged"
    assert all(name in readme for name in ("SYS_PTRACE", "Unconfined", "namespace.yaml"))
    assert f"kubectl apply -f {(K8S / 'namespace.yaml').relative_to(ROOT)}" in readme


@pytest.mark.parametrize("folder", RENDERED)
def test_the_pod_gives_the_server_what_rocm_needs(folder: str) -> None:
    """Root, whose the devices are, shared memory in memory, no service variables, no API token."""
    spec = pod(folder)
    identity = {**spec["securityContext"], **server(folder)["securityContext"]}
    assert not {"runAsUser", "runAsNonRoot", "supplementalGroups"} & identity.keys()
    volumes = {v["name"]: v for v in spec["volumes"]}
    assert volumes["shm"]["emptyDir"]["medium"] == "Memory"
    mounts = {m["mountPath"]: m for m in server(folder)["volumeMounts"]}
    assert mounts["/dev/shm"]["name"] == "shm"
    assert spec["shareProcessNamespace"] is True  # the image has no init of its own
    assert spec["enableServiceLinks"] is False  # VLLM_PORT would be read as a setting
    assert spec["automountServiceAccountToken"] is False


def image_environment() -> dict[str, str]:
    """What the server's Dockerfile sets by ENV."""
    text = (ROOT / "docker" / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.removeprefix("ENV ") for line in text.splitlines() if line.startswith("ENV ")]
    return dict(word.split("=", 1) for line in lines for word in line.split())


@pytest.mark.parametrize("folder", RENDERED)
def test_volumes_are_where_the_image_looks(folder: str) -> None:
    """Built kernels go to the claim, and the weights' claim is the image's hub cache, read-only."""
    mounts = {m["name"]: m for m in server(folder)["volumeMounts"]}
    environment = image_environment()
    for name in ("VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "AITER_JIT_DIR"):
        assert environment[name].startswith(mounts["cache"]["mountPath"] + "/")
    log = next(e["value"] for e in server(folder)["env"] if e["name"] == "DSPARK_LOG")
    assert f"--log={log}" in sidecar(folder)["args"]
    assert Path(log).parent == Path(mounts["log"]["mountPath"])
    assert mounts["weights"]["mountPath"] == f"{environment['HF_HOME']}/hub"
    assert mounts["weights"]["readOnly"] is True


@pytest.mark.parametrize("folder", EVERY)
def test_selectors_reach_the_pod_and_peers_stay_strangers(folder: str) -> None:
    """Service, budget, policy and pool select the server's pod; no peer got its labels."""
    labels = pod_template(folder)["metadata"]["labels"].items()
    policy = one(folder, "NetworkPolicy")["spec"]
    selectors = [
        one(folder, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        policy["podSelector"]["matchLabels"],
    ]
    selectors += [
        r["spec"]["selector"]["matchLabels"] for r in render(folder) if r["kind"] == "InferencePool"
    ]
    selectors.append(
        {
            key: value
            for key, value in one(folder, "Service")["spec"]["selector"].items()
            if key != "leaderworkerset.sigs.k8s.io/worker-index"  # set by its controller
        }
    )
    for selector in selectors:
        assert len(selector) >= 2 and selector.items() <= labels
    rules = [(r, "from") for r in policy["ingress"]] + [(r, "to") for r in policy["egress"]]
    for rule, side in rules:
        for peer in rule[side]:
            assert "matchLabels" not in peer["podSelector"]


@pytest.mark.parametrize("folder", EVERY)
def test_no_pod_is_let_in_for_its_name_alone(folder: str) -> None:
    """Whoever asks from another namespace is of one that is named: a pod may call itself anything."""
    for rule in one(folder, "NetworkPolicy")["spec"]["ingress"]:
        for peer in rule["from"]:
            if "namespaceSelector" in peer:
                (match,) = peer["namespaceSelector"]["matchExpressions"]
                assert match["key"] == "kubernetes.io/metadata.name"
                assert match["operator"] == "In" and match["values"]


def test_the_groups_pods_are_the_overlays() -> None:
    """Leader and worker are the overlay's pod but for their place in the group."""
    whole = pod("overlays/mi355x")
    group = one("examples/multi-node", "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    leader = json.loads(json.dumps(group["leaderTemplate"]["spec"]))
    del leader["containers"][0]["args"]
    assert leader == whole
    worker = group["workerTemplate"]["spec"]
    assert "initContainers" not in worker and kubelet.probes(worker) == []
    assert worker["nodeSelector"] == whole["nodeSelector"]


# --- the kubelet ----------------------------------------------------------------------------------


@contextmanager
def answering(statuses: dict[str, int]) -> Iterator[int]:
    """A real HTTP server that answers each path with its status of the moment."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(statuses.get(self.path, 404))
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield running.server_address[1]
        finally:
            running.shutdown()
            thread.join()


def answers(passes: Surfaces) -> dict[str, int]:
    """What the health service answers on its paths."""
    return {
        "/startupz": 200 if passes.startup else 503,
        "/readyz": 200 if passes.ready else 503,
        "/livez/engine": 200 if passes.engine_live else 503,
        "/livez": 200,
    }


class Script:
    """States by virtual time, served by a real HTTP server to a kubelet; the probes of every folder
    are the same ones."""

    def __init__(self, *states: tuple[float, State]) -> None:
        self._states = states
        self._now = 0.0
        self.statuses: dict[str, int] = {}
        self._pace(0.0)

    def _pace(self, seconds: float) -> None:
        self._now += seconds
        state = [s for at, s in self._states if at <= self._now][-1]
        self.statuses.update(answers(verdict.SURFACES[state]))

    def run(self, seconds: float) -> kubelet.Kubelet:
        """Play it to a new kubelet."""
        with answering(self.statuses) as port:
            ask = kubelet.over_http("127.0.0.1", {RECIPE.ports.health: port})
            node = kubelet.Kubelet(pod("overlays/mi355x"), ask, self._pace)
            node.run(seconds)
        return node


def test_a_slow_start_is_waited_for() -> None:
    """Half an hour of loading and a gate end in a started, ready pod without one restart."""
    states = ((0, State.LOADING), (1800, State.SMOKE), (1830, State.READY))
    node = Script(*states).run(1900)
    assert node.pod_ready and node.restarts("server") == 0
    assert 1830 <= node.when("server", "started")[0] <= 1840
    assert 1830 <= node.when("server", "ready")[0] <= 1835


def test_a_start_over_its_budget_is_given_up() -> None:
    """A server that never passes its gate is restarted after the recipe's start budget."""
    node = Script((0, State.LOADING)).run(7300)
    startup = next(p for p in kubelet.probes(pod("overlays/mi355x")) if p.kind == "startup")
    last_question = startup.initial_delay_s + RECIPE.profile("mi355x").health.start_budget_s
    assert node.when("server", "killed") == [last_question - startup.period_s]
    assert node.restarts("health") == 0


def test_a_stalled_engine_is_restarted_and_a_blip_is_not() -> None:
    """Liveness acts on two minutes of STALLED, not on a minute and a half."""
    blip = ((0, State.READY), (200, State.STALLED), (290, State.READY))
    assert Script(*blip).run(600).restarts("server") == 0
    stalled = Script((0, State.READY), (200, State.STALLED)).run(330)
    assert stalled.restarts("server") == 1
    assert 300 <= stalled.when("server", "killed")[0] <= 320
    assert not stalled.pod_ready


def test_not_ready_takes_the_pod_out_of_rotation_and_restarts_nothing() -> None:
    """Fifteen seconds of NOT_READY end the traffic; recovery brings it back."""
    states = ((0, State.READY), (100, State.NOT_READY), (400, State.READY))
    node = Script(*states).run(420)
    assert node.when("server", "unready") == [110.0]
    assert node.when("server", "ready")[-1] == 400.0
    assert node.restarts("server") == 0 and node.pod_ready


def test_the_rendered_arguments_start_the_real_service(tmp_path: Path) -> None:
    """The sidecar's own command serves the probes: alive, not started, not ready without vLLM."""
    secret = tmp_path / "secret"
    secret.write_text("made-for-a-test\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = {"/run/secrets/dspark/": secret, "/var/log/dspark-rocm/": tmp_path / "server.log"}
    arguments = list(sidecar("overlays/mi355x")["args"])
    for folder, here in paths.items():
        arguments = [re.sub(rf"{folder}[\w.-]+", str(here), word) for word in arguments]
    # the port is taken from the recipe unless given: here any free one, and no vLLM behind it
    extra = ["--port", str(port), "--target", "http://127.0.0.1:9", "--profile", "mi355x"]
    command = [sys.executable, "-m", "healthcheck", *arguments, *extra]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) as running:
        try:
            ask = kubelet.over_http("127.0.0.1", {RECIPE.ports.health: port})
            by_kind = {(p.container, p.kind): p for p in kubelet.probes(pod("overlays/mi355x"))}
            expected = {
                ("server", "startup"): False,
                ("server", "liveness"): True,
                ("server", "readiness"): False,
                ("health", "liveness"): True,
            }
            # Each probe has a time-out of its own, so a slow machine may miss one.
            until(lambda: {key: ask(probe) for key, probe in by_kind.items()} == expected)
        finally:
            running.terminate()
            running.wait(PATIENCE_S)


# --- the kubelet that is simulated here, and a real one -------------------------------------------

RECORDS = sorted((ROOT / "tests/support/recorded_kubelets").glob("*/*.json"))
# How long a server has been started when its drill begins. Real times are late: they are told in whole
# seconds, and a status is on its way for two. An end is late by what the container takes for it besides.
BEFORE_S, LATE_S, STOP_S = 100.0, 3.0, 30.0


def played(told: dict[str, Any], stop_s: float) -> tuple[kubelet.Kubelet, int]:
    """The simulated kubelet after a drill that a real one saw, same states at the same times, and how
    many of its liveness probes failed since it began.

    Its time 0 is BEFORE_S before the record's, and a container takes `stop_s` to end.
    """

    def pace(seconds: float) -> None:
        nonlocal now
        now += seconds

    def ask(probe: kubelet.Probe) -> bool:
        nonlocal failures
        at = now - BEFORE_S
        state = ([State.READY] + [State(s) for since, s in states if since <= at])[-1]
        passed = answers(verdict.SURFACES[state])
        if at < ended:  # a process that once passed its gate stays started
            passed["/startupz"] = 200
        failures += probe.path == "/livez/engine" and passed[probe.path] != 200
        return passed[probe.path] == 200

    now, failures = 0.0, 0
    # what a stalled server does while it is being ended is no answer to liveness any more
    ended, named = told["restarts"][0]["ended"], told["states"]
    stalled = next((at for at, state in named if state == State.STALLED), ended)
    states = [(at, state) for at, state in named if not stalled < at < ended]
    spec = json.loads(json.dumps(pod(REHEARSAL)))
    # on the server of the records a probe has no grace period of its own
    del spec["containers"][0]["livenessProbe"]["terminationGracePeriodSeconds"]
    node = kubelet.Kubelet(spec, ask, pace, stop_s=stop_s)
    if "kubelet_restarted" in told:
        node.run(told["kubelet_restarted"] + BEFORE_S)
        node.begin_anew()
        failures = 0  # as a kubelet's own counts
    for restart in () if told["liveness_failures"] else told["restarts"]:
        node.run(restart["ended"] + BEFORE_S - node.now)
        node.crash("server", restart["started"] - restart["ended"])
    node.run(told["ready"] + 60.0 + BEFORE_S - node.now)
    return node, failures


def test_drills_of_a_real_kubelet_were_recorded() -> None:
    """Of each kind of restart one."""
    assert {path.stem for path in RECORDS} == {"stall", "dead", "kubelet-restart"}


@pytest.mark.parametrize("path", RECORDS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_the_simulated_kubelet_does_what_a_real_one_did(path: Path) -> None:
    """Unready, killed, restarted and ready again when the real one was, to one period of the probe
    that decides: a real kubelet begins its periods at a moment of its own."""
    told = json.loads(path.read_text())
    period = {p.kind: p.period_s for p in kubelet.probes(pod(REHEARSAL)) if p.container == "server"}
    node, failures = played(told, 0.0)
    assert failures == told["liveness_failures"]
    unready = node.when("server", "unready")[0] - BEFORE_S
    assert unready == pytest.approx(told["unready"], abs=period["readiness"] + LATE_S)
    killed = [at - BEFORE_S for at in node.when("server", "killed")]
    assert len(killed) == (told["liveness_failures"] > 0)
    for at in killed:
        (restart,) = told["restarts"]
        late = restart["ended"] - at
        assert -period["liveness"] - LATE_S <= late <= period["liveness"] + LATE_S + STOP_S
        node, _ = played(told, restart["started"] - at)  # begun when the real one was
    assert node.restarts("server") == len(told["restarts"])
    ready = node.when("server", "ready")[-1] - BEFORE_S
    slow = period["startup"] + period["readiness"] + LATE_S
    assert node.pod_ready and ready == pytest.approx(told["ready"], abs=slow)


# --- the kubelet and the verdict, together --------------------------------------------------------


class World:
    """A server with a life of its own, watched by the real state machine, probed by a kubelet.

    `load_s` is the time from a process's start to an answering port. Without `tells_start` its
    /metrics say nothing of when it began, as those of several API servers do.
    """

    def __init__(self, load_s: float, tells_start: bool = True) -> None:
        self.tells_start = tells_start
        self.policy = Policy(RECIPE.profile("mi355x").health, "made", speculates=False)
        self.load_s = load_s
        self.now = 0.0
        self.memory = verdict.begin(0.0)
        self.process_start = 0.0
        self.hung = False
        self._look_at = 0.0
        self._running: Want | None = None
        self._running_since = 0.0
        self._tokens = 0
        self.kubelet = kubelet.Kubelet(
            pod("overlays/mi355x"), self._ask, self._pace, self._restarted, stop_s=30.0
        )

    @property
    def state(self) -> State:
        """What the health service holds."""
        return self.memory.state

    def run(self, seconds: float) -> None:
        """Go on for so long."""
        self.kubelet.run(seconds)

    def crash(self) -> None:
        """The server's process ends, as it does when the engine dies: with code 0."""
        self.kubelet.crash("server")
        self._restarted("server")

    def _restarted(self, _: str) -> None:
        self.process_start = self.now
        self._tokens = 0
        self.hung = False

    def restart_health(self) -> None:
        """The health service ends and begins again, and knows nothing; the pod goes on."""
        self.kubelet.crash("health")
        self.memory = verdict.begin(self.now)
        self._running = None

    def stall(self) -> None:
        """The engine hangs until the health service says so."""
        self.hung = True
        while self.state is not State.STALLED:
            self.run(5)

    def step(self) -> None:
        """The hung engine makes one step, and no more."""
        self._tokens += 1

    def _ask(self, probe: kubelet.Probe) -> bool:
        return answers(verdict.surfaces(self.memory))[probe.path] == 200

    def _pace(self, seconds: float) -> None:
        end = self.now + seconds
        while self._look_at <= end:
            self.now = max(self.now, self._look_at)
            self._look()
            self._look_at = self.now + verdict.next_look_s(self.memory, self.policy)
        self.now = end

    def _look(self) -> None:
        generation, outstanding = None, None
        up = self.now >= self.process_start + self.load_s
        if self._running is not None:
            generation, outstanding = self._progress(up)
        self.memory = verdict.advance(
            self.memory, self._reading(up, generation, outstanding), self.policy
        )
        if self._running is None:
            self._running = verdict.wants(self.memory, self.now, self.policy)
            self._running_since = self.now

    def _progress(self, up: bool) -> tuple[Generation | None, Outstanding | None]:
        assert self._running is not None
        want, since = self._running, self._running_since
        if up and self.hung and self.now < since + want.timeout_s:
            return None, Outstanding(want.step, want.epoch, since)
        self._running = None
        if up and not self.hung:
            finding = Finding("answer", Outcome.GOOD)
        else:
            code = "generation.timeout" if up else "generation.failed"
            finding = Finding("answer", Outcome.UNKNOWN, code)
        return Generation(want.step, want.epoch, since, self.now, (finding,)), None

    def _reading(
        self, up: bool, generation: Generation | None, outstanding: Outstanding | None
    ) -> Reading:
        if not up:
            gone = Failure(FailureKind.REFUSED)
            return Reading(self.now, gone, generation=generation, outstanding=outstanding)
        self._tokens += not self.hung
        sample = EngineSample("0", generation_tokens=float(self._tokens), running=float(self.hung))
        metrics = Exposition(
            self.process_start if self.tells_start else None,
            (replace(sample, speculation=Speculation()),),
        )
        listing = Listing(("made",))
        return Reading(self.now, Answer(200), listing, metrics, generation, outstanding)


@pytest.mark.parametrize("load_s", [60.0, 7000.0])
def test_a_crashed_server_gets_its_whole_start_again(load_s: float) -> None:
    """After a crash the container is restarted once and may load as long as the first time, to the
    longest start that is allowed."""
    world = World(load_s)
    world.run(load_s + 300)
    assert world.state is State.READY and world.kubelet.pod_ready
    world.crash()
    world.run(load_s + 300)
    assert world.state is State.READY and world.kubelet.pod_ready
    assert world.kubelet.restarts("server") == 1


def test_an_engine_that_twitches_is_restarted_all_the_same() -> None:
    """One step of a stalled engine does not save it from the restart if it hangs on."""
    world = World(60.0)
    world.run(300)
    world.stall()
    world.step()
    world.run(2 * RECIPE.profile("mi355x").health.stall_budget_s)
    assert world.kubelet.when("server", "killed")


@pytest.mark.parametrize(("tells_start", "health_restarts"), [(True, True), (False, False)])
def test_a_server_that_stalled_before_kubelet_was_restarted_is_restarted_once(
    tells_start: bool, health_restarts: bool
) -> None:
    """kubelet asks /startupz anew: the server that once passed its gate counts as started, so
    liveness restarts it, and its successor has its whole start again."""
    world = World(600.0, tells_start)
    world.run(900)
    world.hung = True
    if health_restarts:
        world.restart_health()
    world.stall()
    world.kubelet.begin_anew()
    world.run(300)
    assert len(world.kubelet.when("server", "killed")) == 1
    world.run(900)
    assert world.state is State.READY and world.kubelet.pod_ready
    assert world.kubelet.restarts("server") == 1


def test_a_server_that_hangs_in_its_first_gate_keeps_its_start_budget() -> None:
    """It may be building kernels: nobody calls it started, whatever kubelet does."""
    world = World(60.0)
    world.hung = True
    world.stall()
    world.kubelet.begin_anew()
    world.run(3600)
    assert world.kubelet.restarts("server") == 0


@pytest.mark.parametrize("tells_start", [True, False])
def test_a_restarted_server_that_hangs_in_its_gate_keeps_its_start_budget(
    tells_start: bool,
) -> None:
    """That its predecessor passed a gate is nothing to it."""
    world = World(60.0, tells_start)
    world.run(300)
    world.crash()
    world.hung = True
    world.stall()
    world.kubelet.begin_anew()
    world.run(3600)
    assert world.kubelet.restarts("server") == 1
