"""Tries out, one after the other, what a study needs (`automl doctor`).

Torch, Ray and MLflow are imported inside the checks: an import that fails is a finding.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from automl.stored.opening import store_url
from reports.wording import usd
from studies.gangs.available_slots import find_slots
from studies.money.prices import price_of
from studies.redact import redact
from studies.storage.engine import absolute_url
from studies.storage.store import Store

PACKAGES = ("torch", "ray", "optuna", "optuna-dashboard", "mlflow", "sqlalchemy", "plotly")
_GLOO_CURE = "set GLOO_SOCKET_IFNAME to an interface that works, such as lo"


def examine(store: str | None, *, bandwidth: bool = False) -> list[dict[str, Any]]:
    """Return the findings.

    Args:
        store: URL of the store; None takes the environment's AUTOML_STORE, else the default.
        bandwidth: Whether to measure how fast ranks exchange tensors; the last finding then has `exchanges`, a mapping
            for each collective and size.

    Returns:
        A mapping for each finding: `what`, `ok`, `found`, and `cure`, which is empty where all is well.
    """
    url = store_url(store)
    checks: list[tuple[str, Callable[[], str], str]] = [
        ("Python", _python, ""),
        ("packages", _packages, "run `make install`"),
        ("devices", _devices, "check the driver with nvidia-smi, or set resources.device: cpu"),
        ("torch", _torch, "pip install torch for this machine; a GPU build needs the matching driver"),
        ("two ranks", _two_ranks, _GLOO_CURE),
        ("Ray", _ray, "pip install ray; look at its logs in /tmp/ray; resources.ray_temp_folder moves them"),
        ("store", lambda: _store(url), "--store or AUTOML_STORE: a URL whose folder can be written to"),
        ("MLflow", _mlflow, "pip install mlflow, or set mlflow: off"),
    ]
    findings = [_finding(*check) for check in checks]
    if bandwidth:
        exchanges: list[dict[str, Any]] = []
        finding = _finding("exchanges", lambda: _exchanges(exchanges), _GLOO_CURE)
        findings.append(finding | {"exchanges": exchanges})
    return findings


def _finding(what: str, check: Callable[[], str], cure: str) -> dict[str, Any]:
    try:
        return {"what": what, "ok": True, "found": check(), "cure": ""}
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is the finding
        return {"what": what, "ok": False, "found": redact(" ".join(str(error).split())[:300]), "cure": cure}


def _python() -> str:
    return sys.version.split()[0]


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

    backends = [
        name for name, there in (("gloo", dist.is_gloo_available()), ("nccl", dist.is_nccl_available())) if there
    ]
    if find_slots("auto", 1, None).device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("there is a GPU, but this torch cannot use it")
    return f"{torch.__version__}, backends {', '.join(backends)}"


def _two_ranks() -> str:
    from trainers.local import train_locally
    from trainers.protocol import TrialSpec

    spec = TrialSpec(study="doctor", trial=0, task="digits", params={}, training={"epochs": 1}, world_size=2)
    measurements = train_locally(spec, 2)
    return f"trained digits for one epoch, val_error {measurements[-1].metrics['val_error']:.3f}"


def _exchanges(exchanges: list[dict[str, Any]]) -> str:
    from trainers.bandwidth import measure_bandwidth

    places = find_slots("auto", 1, None)
    ranks = max(places.slots, 2)
    exchanges += [asdict(one) for one in measure_bandwidth(ranks, places.device)]
    lines = [
        f"{one['collective']:14}{one['bytes'] / 2**20:9.3f} MiB  {1e3 * one['seconds']:9.3f} ms  "
        f"{one['gigabytes_per_second']:7.3f} GB/s"
        for one in exchanges
    ]
    return "\n     ".join([f"{ranks} ranks, {places.device_name}", *lines])


def _ray() -> str:
    import ray

    from studies.gangs.ray_cluster import OBJECT_STORE_BYTES, connect

    before = ray.is_initialized()
    connect(
        None, num_cpus=1, include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES, _node_ip_address="127.0.0.1"
    )
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
            return f"{path} is not there yet, its folder can be written to"
    Store(text).close()
    return str(path)


def _mlflow() -> str:
    from studies.storage.mlflow_connect import open_client

    with tempfile.TemporaryDirectory() as folder:
        open_client(f"sqlite:///{folder}/mlflow.db").create_experiment("doctor")
    return f"{version('mlflow')} writes to SQLite"
