"""Who may import whom, and where each heavy library has its doors."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import ROOT

STANDALONE = "automl.standalone"
SERVING = f"{STANDALONE}.serving"
SERVED_BY = {
    "fastapi", "gunicorn", "prometheus_client", "pydantic", "pydantic_core", "pydantic_settings", "starlette",
    "uvicorn", "uvicorn_worker",
}  # fmt: skip
PACKAGES = ("search_spaces", "trainers", "studies", "reports", "automl")

# Each layer may import itself and those before it. The first pattern that matches names a module's layer.
LAYERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("search_spaces", ("search_spaces",)),
    ("automl.standalone", ("automl.standalone",)),
    ("trainers.protocol", ("trainers.protocol",)),
    ("trainers", ("trainers",)),
    ("studies: records", ("studies.records", "studies.steady_clock",
                          "studies.results.pareto", "studies.results.extrapolation",
                          "studies.results.constraints", "studies.results.constraints",
                          "studies.results.confirmations")),
    ("studies: search", ("studies.search",)),
    ("studies: spec", ("studies.spec",)),
    ("studies: storage, money, gangs", ("studies.storage", "studies.money", "studies.gangs")),
    ("studies: analysis", ("studies.results", "studies.records.plain_rows")),
    ("studies: queueing", ("studies.queueing",)),
    ("studies: control", ("studies.control",)),
    ("studies: simulation", ("studies.simulation",)),
    ("reports", ("reports",)),
    ("automl", ("automl",)),
)  # fmt: skip

# Modules that may name a library, anywhere in their code; with the reason if it is not the library's home.
DOORS: dict[str, dict[str, str]] = {
    "torch": {
        "trainers": "its home",
        "automl.doctor_checks": "asks which devices and backends work here, inside functions",
        "automl.libraries": "what runs in ranks, inside training functions",
        "automl.callbacks": "files of a transformers.Trainer, in a user's script",
        "automl.exporting": "models as programs",
        "automl.registry.comparison": "answers of two models",
        "automl.standalone.programs": "runs exported models, where nothing else of us is",
    },
    "onnx": {"automl.exporting.formats": "its home"},
    "onnxruntime": {"automl.standalone.onnx_process": "runs exported models"},
    "ray": {"studies.gangs.on_ray": "its home", "studies.gangs.ray_actors": "its home",
            "studies.gangs.ray_cluster": "its home",
            "studies.gangs.rank_deaths_and_reports": "its home",
            "studies.gangs.ray_slots": "its home", "studies.gangs.node_watch": "its home",
            "automl.doctor_checks": "asks for its version, inside functions",
            "automl.adapters.for_ray_tune": "our search in somebody's Tuner",
            "automl.adapters.tune_trainable": "runs somebody's trainable, in ranks"},
    "optuna": {
        "studies.search.samplers.optuna_suggester": "its home",
        "studies.search.samplers.optuna_mirror": "the study that a sampler is asked in",
        "studies.storage.views.optuna_view": "the view that Optuna Dashboard reads",
        "automl.dashboard_study": "plots and notes for Optuna Dashboard",
        "automl.launching.earlier_studies": "reads somebody's Optuna study as prior data",
        "automl.histories.trackers": "imports somebody's Optuna study",
        "automl.service.mounts.optuna_mount": "what a project sees of Optuna's storage",
        "automl.adapters.for_optuna": "our pruners in somebody's Optuna study",
    },
    "optuna_dashboard": {"automl.dashboard_study": "plots and notes of a study"},
    "sqlalchemy": {
        "studies.storage": "its home",
        "studies.queueing": "the queue in the store",
        "automl": "URLs, and rows that the store hands out",
    },
    "alembic": {"studies.storage.schema.engine": "its home", "studies.storage.migrations": "its home"},
    "mlflow": {"automl.exporting.mlflow_model": "models in its format",
               "automl.histories.trackers": "imports somebody's experiment",
               "automl.registry.registered": "its registry",
               "trainers.local.diagnostics": "its monitor of GPUs",
               "studies.storage.views.mlflow_runs": "its home", "studies.storage.views.mlflow_connect": "its home",
               "studies.storage.views.mlflow_study": "its home"},
    "fastapi": {f"{SERVING}.app": "its home", "automl.service": "its home for studies",
                "automl.mcp_server.mounted": "the tools at a path of the service"},
    "mcp": {"automl.mcp_server": "its home"},
    "starlette": {f"{SERVING}.app": "its home", "automl.service.http": "its home for studies"},
    "gunicorn": {f"{SERVING}.serve": "its home"},
    "uvicorn_worker": {f"{SERVING}.serve": "its home"},
    "uvicorn": {f"{SERVING}.connections": "its server, with limits for connections",
                "automl.service.http.uvicorn_run": "its home for studies"},
    "prometheus_client": {f"{SERVING}.metrics": "its home", "automl.service.http.health": "its home for studies"},
    "pydantic_settings": {f"{SERVING}.settings": "its home"},
    "pydantic": {"studies.spec": "its home", "automl.service.http.request_bodies": "bodies of requests",
                 "automl.mcp_server": "arguments of tools",
                 f"{SERVING}.settings": "settings from the environment", f"{SERVING}.access": "the token among them"},
    **{name: {"automl.libraries": "its home"} for name in ("lightning", "accelerate", "keras", "xgboost", "skops")},
    "lightgbm": {"automl.libraries": "its home", "trainers.tasks.table.tree_growth": "boosted trees"},
    "automl.libraries": {"automl.libraries": "for functions of users, no part of `import automl`"},
    "plotly": {"reports": "its home"},
    "pandas": {"automl.api": "its home", "automl.exporting.mlflow_model": "MLflow's form of an example"},
    "IPython": {"automl.notebook_cell": "its home"},
    "jinja2": {"reports": "its home", "automl.text_templates": "files that other programs read",
               "automl.service.pages.rendering": "pages of the service"},
    "a2wsgi": {"automl.service.mounts.optuna_mount": "its home"},
    "scipy": {
        "studies.search.model": "linear algebra, fits, quantiles",
        "studies.search.arrays": "quasi-random points",
        "studies.search.acquisition": "tails of distributions",
        "automl.registry.comparison": "the t distribution",
        "trainers.tasks.words.ngrams": "sparse counts of n-grams, L-BFGS",
    },
    "moocore": {"studies.results.pareto": "its home"},
    "sklearn": {
        "trainers.tasks": "data sets of built-in tasks",
        "studies.results.importance": "the forest that importance is read from",
    },
    "click": {"automl": "its home"},
    "rich": {"automl": "its home"},
    "fsspec": {"trainers.checkpoints.object_store": "its home"},
    "psutil": {"trainers": "memory of a rank", "studies.storage": "do the lease's holder and the views' process live",
               "studies.gangs.on_ray": "the name of the loopback interface"},
    "requests": {"automl.remote.client": "its home"},
    "yaml": {"studies.spec.yaml_reader": "its home"},
}  # fmt: skip


@cache
def modules() -> dict[str, Path]:
    """All our modules by dotted name."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(name: str) -> tuple[tuple[str, bool], ...]:
    """What a module imports, and whether that happens at its import; annotations alone need no library."""
    tree = ast.parse(modules()[name].read_text())
    return tuple(_imports(tree, name.rpartition(".")[0], at_import=True))


def _imports(node: ast.AST, package: str, *, at_import: bool) -> Iterator[tuple[str, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, at_import) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert not child.level or is_in(package, STANDALONE), "relative imports hide who is imported"
            start = ".".join(package.split(".")[: len(package.split(".")) + 1 - child.level])
            module = f"{start}.{child.module}" if child.level else str(child.module)
            for alias in child.names:
                full = f"{module}.{alias.name}"
                yield (full if full in modules() else module), at_import
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            named = _imports(child, package, at_import=False)
            yield from (one for one in named if one[0].split(".")[0] in PACKAGES)
            continue
        inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from _imports(child, package, at_import=at_import and not inside)


def is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def layer(name: str) -> int:
    fitting = [(len(pattern), index) for index, (_, patterns) in enumerate(LAYERS) for pattern in patterns
               if is_in(name, pattern)]  # fmt: skip
    assert fitting, f"{name} has no place in the order of the modules: give it one"
    return max(fitting)[1]


@pytest.mark.medium
def test_imports_point_down() -> None:
    upward = [
        f"{name} ({LAYERS[layer(name)][0]}) imports {imported} ({LAYERS[layer(imported)][0]})"
        for name in modules()
        for imported, _ in imports(name)
        if imported in modules() and layer(imported) > layer(name)
    ]
    assert upward == []


def test_the_rooms_of_the_search_have_an_order() -> None:
    """The model forecasts, acquisition functions value forecasts, pruners and samplers act on values."""
    above = {"model": ("acquisition", "pruners", "samplers"), "acquisition": ("pruners", "samplers")}
    for room, higher in above.items():
        for name in (one for one in modules() if is_in(one, f"studies.search.{room}")):
            found = [one for one, _ in imports(name) for upper in higher if is_in(one, f"studies.search.{upper}")]
            assert not found, f"{name} imports {found}"


def test_studies_see_of_trainers_the_protocol_only() -> None:
    """The controller never imports torch, and a gang starts its trainer by an entry point inside the rank."""
    # Doors: a spec is checked against what trainer, task and command declare; a rank's messages are unpacked in its own
    # process; who deletes, weighs and finds checkpoints asks the place where they are, which loads no torch; slots are
    # counted by the CPUs that ranks may use; an advisor's program is looked for where a command's is.
    places = {"trainers.protocol", "trainers.checkpoints.checkpoint_stores", "trainers.checkpoints.locations"}
    allowed = {
        "studies.spec.sections": {"trainers.trainer_options"},
        "studies.spec.checks": {"trainers.trainer_options", "trainers.local.try_out_task", "trainers.commands.command"},
        "studies.spec.study_spec": {"trainers.commands.command"},
        "studies.search.samplers.advisor": {"trainers.commands.command"},
        "studies.gangs.available_slots": {"search_spaces.machine_resources"},
        "studies.gangs.ray_actors": {"trainers.ranks.rank_messages", "trainers.ranks.printed_output"},
        "studies.control.files.orphans": {"trainers.checkpoints.object_store", "trainers.checkpoints.locations"},
    }
    for name in modules():
        if is_in(name, "studies"):
            seen = {one for one, _ in imports(name) if is_in(one, "trainers")}
            assert seen - places <= allowed.get(name, set()), name


def test_search_spaces_need_the_standard_library_only() -> None:
    for name in modules():
        if is_in(name, "search_spaces"):
            for imported, _ in imports(name):
                top = imported.split(".")[0]
                assert top == "search_spaces" or top in sys.stdlib_module_names, f"{name} imports {imported}"


def test_what_goes_into_exported_models_stands_alone() -> None:
    """It is copied into packages; libraries are imported where rows or programs need them, or where it is served."""
    for name in modules():
        if is_in(name, STANDALONE):
            for imported, at_import in imports(name):
                top = imported.split(".")[0]
                is_plain = top in sys.stdlib_module_names or is_in(imported, STANDALONE)
                is_for_serving = is_in(name, SERVING) and top in SERVED_BY
                assert is_plain or is_for_serving or not (at_import or top in PACKAGES), f"{name} imports {imported}"
                assert is_in(name, SERVING) or not is_in(imported, SERVING), f"{name} imports {imported}"


@pytest.mark.medium
def test_there_is_no_cycle() -> None:
    """Imports inside functions count: they only hide a cycle."""
    graph = {name: {one for one, _ in imports(name) if one in modules() and one != name} for name in modules()}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name not in done:
            for one in sorted(graph[name]):
                visit(one, (*path, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())


@pytest.mark.medium
def test_modules_and_classes_can_be_read_at_a_sitting() -> None:
    long = []
    for name, path in modules().items():
        text = path.read_text()
        long += [name] if len(text.splitlines()) > 600 else []
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and (node.end_lineno or 0) - node.lineno >= 400:
                long.append(f"{name}:{node.name}")
    assert long == []


def test_nobody_imports_a_facade_of_ours() -> None:
    """Package files hold a docstring; only `automl` is a facade, and it is lazy."""
    for name, path in modules().items():
        if path.name == "__init__.py" and name != "automl":
            body = ast.parse(path.read_text()).body
            assert len(body) == 1, f"{path} holds more than a docstring"
            assert isinstance(body[0], ast.Expr)
    assert not [one for one, at_import in imports("automl") if at_import and one.split(".")[0] in DOORS]


@pytest.mark.medium
def test_a_heavy_library_stays_behind_its_doors() -> None:
    for library, named in DOORS.items():
        doors = set(named)
        users = {name for name in modules() for one, _ in imports(name) if is_in(one, library)}
        for name in users:
            assert any(is_in(name, door) for door in doors), f"{name} imports {library}; its doors are {doors}"
        unused = {door for door in doors if not any(is_in(name, door) for name in users)}
        assert not unused, f"nobody imports {library} through {unused}: close them"


LOADED = """
import sys, runpy
sys.argv = ["automl", "--help"]
try:
    runpy.run_module("automl", run_name="__main__")
except SystemExit as ended:
    assert not ended.code, ended.code
print("LOADED", *sorted(set(sys.argv_heavy) & set(sys.modules)))
"""


def loaded_by(code: str, cwd: Path) -> set[str]:
    heavy = ["torch", "ray", "optuna", "sqlalchemy", "alembic", "mlflow", "pydantic", "plotly", "moocore", "sklearn",
             "numpy", "pandas", "rich", "fsspec", "s3fs", "optuna_dashboard", "jinja2",
             "fastapi", "uvicorn", "prometheus_client", "opentelemetry"]  # fmt: skip
    program = f"import sys; sys.argv_heavy = {heavy!r}\n{code}"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True, cwd=cwd,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(cwd)},
    )  # fmt: skip
    return set(result.stdout.rsplit("LOADED", 1)[1].split())


@pytest.mark.medium
def test_help_loads_none_of_the_heavy_ones(tmp_path: Path) -> None:
    assert loaded_by(LOADED, tmp_path) == set()


@pytest.mark.medium
@pytest.mark.parametrize(
    ("module", "never"),
    [
        (
            "studies.control.session",
            {"torch", "ray", "optuna", "mlflow", "plotly", "sklearn", "fsspec", "opentelemetry"},
        ),
        ("studies.storage.views.views_process", {"optuna", "mlflow", "opentelemetry"}),
        ("automl.service.workers.queue_worker", {"opentelemetry"}),
        ("automl.commands.predict", {"torch", "pandas", "mlflow", "sqlalchemy", "optuna", "plotly"}),
        ("studies.control.machine.state", {"torch", "ray", "optuna", "mlflow", "plotly", "sklearn", "sqlalchemy"}),
        ("studies.gangs.on_ray", {"torch", "ray", "optuna", "mlflow", "sqlalchemy"}),
        ("trainers.contract.task, trainers.protocol, trainers.tasks.digits as it; it.Digits().space()",
         {"torch", "numpy", "sklearn"}),
        ("studies.results.analysis, studies.results.importance, search_spaces.untrusted_text, studies.spec.checks",
         {"torch", "ray", "optuna", "mlflow", "sqlalchemy", "plotly", "moocore", "sklearn", "pandas"}),
        ("trainers.checkpoints.checkpoint_stores", {"torch", "numpy", "fsspec", "pydantic"}),
        ("trainers.contract.task_loading", {"torch"}),
        ("search_spaces.space", {"numpy", "pydantic"}),
        ("automl", {"torch", "ray", "optuna", "sqlalchemy", "pydantic", "mlflow"}),
    ],
)  # fmt: skip
def test_a_module_does_not_load_what_it_may_not_need(module: str, never: set[str], tmp_path: Path) -> None:
    code = f"import {module}\nprint('LOADED', *sorted(set(sys.argv_heavy) & set(sys.modules)))"
    assert loaded_by(code, tmp_path) & never == set()
