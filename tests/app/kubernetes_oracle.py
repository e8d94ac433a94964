"""Checks examples/k8s against the models of Kubernetes and of Kubeflow's training operator, which their Python clients carry, and against
what the program reads: host names, variables, exit codes. Needs no cluster."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import kubeflow.training
import kubernetes.client
import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODELS = {("v1", "Service"): "V1Service", ("batch/v1", "Job"): "V1Job", ("kubeflow.org/v1", "PyTorchJob"): "KubeflowOrgV1PyTorchJob"}
SCALARS = {"str": str, "int": int, "float": float, "bool": bool}
# The clients' models have no enumerations.
WORDS = {"action": {"Count", "FailIndex", "FailJob", "Ignore"}, "completionMode": {"Indexed", "NonIndexed"}, "operator": {"In", "NotIn"},
         "podReplacementPolicy": {"Failed", "TerminatingOrFailed"}, "restartPolicy": {"Always", "ExitCode", "Never", "OnFailure"},
         "cleanPodPolicy": {"All", "None", "Running"}, "medium": {"", "Memory"}}
KEYS_OF_MAPS = {"app", "nvidia.com/gpu", "Master", "Worker"}  # any other key is a field


def faults(value, kind: str, where: str) -> list[str]:
    """Returns what is wrong with a value that should be of this kind, for example dict(str, V1Volume)."""
    if kind == "object":
        return []
    if kind in SCALARS:
        return [] if type(value) is SCALARS[kind] else [f"{where}: {value!r} is no {kind}"]
    if inner := re.fullmatch(r"list\[(.*)\]", kind):
        if not isinstance(value, list):
            return [f"{where}: no list"]
        return [fault for i, element in enumerate(value) for fault in faults(element, inner[1], f"{where}[{i}]")]
    if not isinstance(value, dict):
        return [f"{where}: no mapping"]
    if inner := re.fullmatch(r"dict\(str, (.*)\)", kind):
        return [fault for key, element in value.items() for fault in faults(element, inner[1], f"{where}.{key}")]
    model = getattr(kubernetes.client, kind, None) or getattr(kubeflow.training, kind)
    names = {name: attribute for attribute, name in model.attribute_map.items()}
    found = [f"{where}: {kind} has no field {key}" for key in value if key not in names]
    for key in value.keys() & names.keys():
        found += faults(value[key], model.openapi_types[names[key]], f"{where}.{key}")
        if key in WORDS and value[key] not in WORDS[key]:
            found.append(f"{where}.{key}: {value[key]!r} is none of {sorted(WORDS[key])}")
    try:
        model(**{names[key]: element for key, element in value.items() if key in names})
    except ValueError as error:  # a field that must be there
        found.append(f"{where}: {error}")
    return found


def faults_of(document: dict) -> list[str]:
    model = MODELS.get((document.get("apiVersion"), document.get("kind")))
    return faults(document, model, document["kind"]) if model else ["apiVersion and kind name no model"]


def mutants(node, change):
    """Yields `change` with each key renamed and each scalar of another type, one at a time. Changes and restores `node` in place."""
    for key in list(node) if isinstance(node, dict) else range(len(node)):
        value = node[key]
        if isinstance(value, (dict, list)):
            yield from mutants(value, change)
        else:
            node[key] = 7 if isinstance(value, str) else "seven"
            yield change, f"{key}: {node[key]!r}"
            node[key] = value
        if isinstance(node, dict) and key not in KEYS_OF_MAPS:
            node[key + "X"] = node.pop(key)
            yield change, f"{key}X"
            node[key] = node.pop(key + "X")


def read(name: str) -> list[dict]:
    """Reads and checks a file, and checks that any mistake in it would be found."""
    documents = list(yaml.safe_load_all((ROOT / "examples" / "k8s" / name).read_text()))
    for document in documents:
        assert not faults_of(document), (name, faults_of(document))
        changed = json.loads(json.dumps(document))
        count = 0
        for mutant, what in mutants(changed, changed):
            assert faults_of(mutant), f"{name}: {what} is not found"
            count += 1
        assert changed == document and count >= 10
    return documents


def option(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1]


def check_pod(pod: dict) -> dict:
    """Checks what both kinds of jobs need, and returns the container."""
    (container,) = pod["containers"]
    arguments = container["args"]
    assert arguments[0] == "launch" and "--supervise" in arguments, arguments
    # Not auto: a pod that has lost a GPU must not look like a mistake of the command.
    assert option(arguments, "-n") == container["resources"]["limits"]["nvidia.com/gpu"], arguments
    assert pod["securityContext"]["runAsUser"] == 1000 and "USER 1000:1000" in (ROOT / "Dockerfile").read_text()
    token = {variable["name"]: variable for variable in container["env"]}["OCTET_TOKEN"]
    assert set(token["valueFrom"]["secretKeyRef"]) == {"name", "key"}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    assert mounts["/dev/shm"]["emptyDir"]["medium"] == "Memory"
    assert "persistentVolumeClaim" in mounts[container["workingDir"]]
    return container


def start(octet: str, arguments: list[str], variables: dict[str, str]) -> str:
    """Runs the program as in a pod, and returns why it refuses."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(ROOT / "configs" / "quickstart.toml", pathlib.Path(folder) / "run.toml")
        token = "0123456789abcdef" * 4
        result = subprocess.run([octet, *arguments], cwd=folder, env={**os.environ, "OCTET_TOKEN": token, **variables}, timeout=60,
                                stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert result.returncode == 2, result
        return result.stderr


def on_cpus(arguments: list[str]) -> list[str]:
    changed = arguments.copy()
    changed[changed.index("-n") + 1] = "1"
    return changed


def check_indexed_job(octet: str) -> None:
    service, job = read("job.yaml")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    container = check_pod(pod)
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
    assert service["spec"]["selector"].items() <= spec["template"]["metadata"]["labels"].items()
    assert pod["subdomain"] == service["metadata"]["name"] and pod["restartPolicy"] == "Never"
    count = spec["completions"]
    assert spec["completionMode"] == "Indexed" and spec["parallelism"] == count
    hosts = option(container["args"], "--hosts")
    assert hosts == f"{job['metadata']['name']}-[0-{count - 1}].{pod['subdomain']}", hosts
    fails, ignores = spec["podFailurePolicy"]["rules"]
    assert fails["action"] == "FailJob" and fails["onExitCodes"]["values"] == [2, 3, 76, 77]
    assert fails["onExitCodes"]["containerName"] == container["name"] and ignores["action"] == "Ignore"
    # One pod too many. The program only notices after it has read the whole command line and the list of hosts.
    why = start(octet, on_cpus(container["args"]), {"JOB_COMPLETION_INDEX": str(count)})
    assert f"this is host {count} of {count}" in why, why


def check_pytorch_job(octet: str) -> None:
    (job,) = read("pytorchjob.yaml")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert replicas["Master"]["template"] == replicas["Worker"]["template"] and replicas["Master"]["replicas"] == 1
    container = check_pod(replicas["Master"]["template"]["spec"])
    assert container["name"] == "pytorch"
    count = sum(replica["replicas"] for replica in replicas.values())
    variables = {"PET_NNODES": str(count), "PET_NODE_RANK": str(count), "RANK": str(count), "WORLD_SIZE": str(count),
                 "MASTER_ADDR": f"{job['metadata']['name']}-master-0", "MASTER_PORT": "23456"}
    why = start(octet, on_cpus(container["args"]), variables)
    assert f"this is host {count} of {count}" in why, why
    bare = start(octet, ["train", "run.toml"], {**variables, "RANK": "0"})
    assert "start `octet launch " in bare, bare


if __name__ == "__main__":
    check_indexed_job(sys.argv[1])
    check_pytorch_job(sys.argv[1])
