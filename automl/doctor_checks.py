"""Checks of `automl doctor`. Each check imports its library itself, to report failed imports."""

import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from automl.stored.open_store import store_url
from automl.training.request import check_backend
from reports.phrases import usd
from search_spaces.untrusted_text import redact
from studies.gangs.available_slots import AvailableSlots, find_slots
from studies.money.budget import price_of
from studies.storage.schema.engine import absolute_url
from studies.storage.study_store import Store
from trainers.protocol import Backend
from trainers.ranks.group_options import BackendChoice, GroupOptions

PACKAGES = ("torch", "ray", "optuna", "optuna-dashboard", "mlflow", "sqlalchemy", "plotly")
_CURES: Mapping[Backend, str] = {
    "gloo": "set GLOO_SOCKET_IFNAME to an interface that works, such as lo",
    "nccl": "NCCL_DEBUG=INFO says more; if --backend gloo works, NCCL is the cause: set resources.backend: gloo",
}


def examine(store: str | None, *, bandwidth: bool = False, backend: BackendChoice = "auto") -> list[dict[str, Any]]:
    """Run all checks. Returns the `finding` of each.

    Args:
        store: URL; None takes AUTOML_STORE, or the default.
        bandwidth: Measure how fast ranks exchange tensors. The last finding then has `exchanges`, by collective and
            size.

    Raises:
        SpecError: The backend is not available on this machine.
    """
    url = store_url(store)
    places, group = find_slots("auto", 1, None), GroupOptions(backend=backend)
    check_backend(group, places, _ranks_on(places))
    carrier = group.backend_of(places.device, ranks=_ranks_on(places), devices=places.slots)
    checks: list[tuple[str, Callable[[], str], str]] = [
        ("Python", lambda: sys.version.split()[0], ""),
        ("packages", _packages, "run `make install`"),
        ("devices", _devices, "check the driver with nvidia-smi, or set resources.device: cpu"),
        ("torch", _torch, "pip install torch for this machine; a GPU build needs the matching driver"),
        ("two ranks", lambda: _two_ranks(places, group), _CURES[carrier]),
        ("Ray", _ray, "pip install ray; look at its logs in /tmp/ray; resources.ray_temp_folder moves them"),
        ("store", lambda: _store(url), "set --store or AUTOML_STORE to a URL whose folder can be written"),
        ("MLflow", _mlflow, "pip install mlflow, or set mlflow: off"),
    ]
    findings = [finding(*check) for check in checks]
    if bandwidth:
        exchanges: list[dict[str, Any]] = []
        found = finding("exchanges", lambda: _exchanges(places, group, exchanges), _CURES[carrier])
        findings.append(found | {"exchanges": exchanges})
    return findings


def _packages() -> str:
    missing, found = [], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        raise RuntimeError(f"not installed: {', '.join(missing)}")
    return ", ".join(found)


def _devices() -> str:
    places = find_slots("auto", 1, None)
    price = price_of(places.device, places.device_name, 1)
    return f"{places.slots} x {places.device_name} at {usd(price.usd_per_slot_hour)} an hour ({price.source})"


def _torch() -> str:
    import torch
    import torch.distributed as dist

    known = (("gloo", dist.is_gloo_available()), ("nccl", dist.is_nccl_available()))
    backends = [name for name, there in known if there]
    if find_slots("auto", 1, None).device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("there is a GPU, but this torch cannot use it")
    return f"{torch.__version__}, backends {', '.join(backends)}"


def _ranks_on(places: AvailableSlots) -> int:
    """Return the number of ranks to test: at least two, because one rank exchanges nothing."""
    return max(places.slots, 2)


def _two_ranks(places: AvailableSlots, group: GroupOptions) -> str:
    from trainers.local.local_training import RankFacts, train_locally
    from trainers.protocol import TrialSpec

    spec = TrialSpec(study="doctor", trial=0, task="digits", params={}, training={"epochs": 1}, device=places.device)
    facts: list[RankFacts] = []
    measurements = train_locally(spec, 2, on_facts=facts.append, group=group)
    where = f"on {places.device_name} over {facts[0].backend}"
    return f"trained digits for one epoch {where}, val_error {measurements[-1].metrics['val_error']:.3f}"


def _exchanges(places: AvailableSlots, group: GroupOptions, exchanges: list[dict[str, Any]]) -> str:
    from trainers.local.bandwidth import measure_bandwidth

    ranks = _ranks_on(places)
    carrier = group.backend_of(places.device, ranks=ranks, devices=places.slots)
    exchanges += [asdict(one) for one in measure_bandwidth(ranks, places.device, group=group)]
    lines = [
        f"{one['collective']:14}{one['bytes'] / 2**20:9.3f} MiB  {1e3 * one['seconds']:9.3f} ms  "
        f"{one['gigabytes_per_second']:7.3f} GB/s"
        for one in exchanges
    ]
    return "\n     ".join([f"{ranks} ranks, {places.device_name} over {carrier}", *lines])


def _ray() -> str:
    import ray

    from studies.gangs.ray_cluster import OBJECT_STORE_BYTES, connect

    before = ray.is_initialized()
    connect(None, num_cpus=1, include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES)
    nodes = len(ray.nodes())  # type: ignore[no-untyped-call]
    if not before:
        ray.shutdown()
    return f"{ray.__version__} starts, {nodes} node"


def _store(url: str) -> str:
    text = absolute_url(url, Path.cwd())
    if not text.startswith("sqlite:"):
        Store(text).close()
        return redact(text)
    path = Path(text.removeprefix("sqlite:///"))
    if not path.exists():
        # Opening the store would create the file.
        with tempfile.NamedTemporaryFile(dir=path.parent):
            return f"{path} does not exist yet, its folder can be written"
    Store(text).close()
    return str(path)


def _mlflow() -> str:
    from studies.storage.views.mlflow_connect import open_client

    with tempfile.TemporaryDirectory() as folder:
        open_client(f"sqlite:///{folder}/mlflow.db").create_experiment("doctor")
    return f"{version('mlflow')} writes to SQLite"


LONGEST = 300  # most characters of an unexpected error's message


class WrongError(Exception):
    """A check found a problem. An empty `cure` means the check's default cure."""

    def __init__(self, found: str, cure: str = "") -> None:
        super().__init__(found)
        self.cure = cure


def finding(what: str, check: Callable[[], str], cure: str = "") -> dict[str, Any]:
    """Run a check. Returns `what`, `ok`, `found` and `cure` (empty if ok)."""
    try:
        return {"what": what, "ok": True, "found": check(), "cure": ""}
    except WrongError as error:
        return {"what": what, "ok": False, "found": redact(str(error)), "cure": error.cure or cure}
    except Exception as error:  # noqa: BLE001 - any error is the finding
        return {"what": what, "ok": False, "found": redact(" ".join(str(error).split())[:LONGEST]), "cure": cure}
