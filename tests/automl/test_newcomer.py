"""Every command of README and docs works as it is written, or stands here with the reason why it is not run."""

import json
import shlex
from pathlib import Path

import pytest

from tests.support import newcomer
from tests.support.command_line import InProcess, Workplace
from tests.support.newcomer import Newcomer
from tests.support.paths import ROOT

OTHER_HOST = "needs another host"
MAKE = "sets the checkout up or runs all tests, of which this is one; CI calls it"
INSTALLS = "installs packages; CI does that"
DOCKER = "needs Docker; tests/automl/images looks at what it would build"
CLUSTER = "needs SLURM, Kubernetes or Docker; tests/automl/clusters runs and checks what is written for them"
STAYS = "a server that stays; tests/automl starts it"
SERVES = "a server that stays, and requests to it; tests/automl/serving starts and asks it"
CURVES = "needs recorded curves, which are no part of the repository; tests/studies/simulation has made-up ones"
WATCHES = "follows a study until its end; tests/automl/test_watch.py does"
HISTORY = "needs another tool's exports; tests/automl/test_import.py makes some"
LEFT_OUT = {
    "python examples/search_digits.py": "searches for a minute; tests/test_wheel.py runs it for two trials",
    "automl import old --for digits.yaml --from runs.csv --from curves.csv --price 2.5 --map lr=learning_rate --map "
    "val_acc=val_error:max:percent": HISTORY,
    "automl launch digits.yaml --from-study old": HISTORY,
    "automl launch cluster.yaml --set resources.ray_address=10.0.0.5:6379 --set resources.slots=16": OTHER_HOST,
    "automl status cluster --watch": WATCHES,
    "automl worker --slots 8": STAYS,
    "automl serve-model models:/flowers@champion": SERVES,
    "python ask.py flowers.csv": "needs that server; tests/test_tutorials.py has one",
    "pip install .": INSTALLS,
    "pip install -c constraints.txt -e '.[object-stores]'": INSTALLS,
    "pip install -c constraints.txt -e '.[serve]'": INSTALLS,
    "docker build --tag moons moons-image": DOCKER,
    "ray start --head --node-ip-address 10.0.0.5 --port 6379": OTHER_HOST,
    "ray start --address 10.0.0.5:6379": OTHER_HOST,
    "automl launch digits.yaml --set resources.ray_address=10.0.0.5:6379": OTHER_HOST,
    "automl submit digits.yaml --slurm --follow --nodes 2 --gpus-per-node 4 --time 04:00:00 --partition gpu": CLUSTER,
    "sbatch digits.sbatch": CLUSTER,
    "docker build --file Dockerfile.gpu --tag registry.example/digits:1 .": CLUSTER,
    "docker push registry.example/digits:1": CLUSTER,
    "kubectl create secret generic digits --from-literal=store=postgresql://USER:PASSWORD@HOST/DATABASE": CLUSTER,
    "kubectl apply --filename rayjob.yaml": CLUSTER,
    'echo "POSTGRES_PASSWORD=$(openssl rand -hex 16)" > .env': CLUSTER,
    "docker compose up --build --detach --wait": CLUSTER,
    "automl dashboard": STAYS,
    "automl serve --uploads uploads --worker 0": STAYS,
    'curl -H "Authorization: Bearer $TOKEN" --data-binary @churn.csv '
    "'localhost:8765/api/v1/uploads?name=churn.csv'": STAYS,
    "automl store copy sqlite:///backup-2026-11-25.db postgresql://me@db.example/restored": OTHER_HOST,
    "mlflow ui --backend-store-uri sqlite:///mlflow.db": STAYS,
    "automl serve-model model": SERVES,
    "automl serve-model models:/moons@champion": SERVES,
    """curl localhost:8000/predict -d '{"row": {"age": 39, "city": "Oslo", "score": null}}'""": SERVES,
    """curl localhost:8000/predict/batch -d '{"rows": ["a good film", "a bad one"]}'""": SERVES,
    r'''curl localhost:8000/predict -d "{\"row\": \"$(base64 -w0 photo.jpg)\"}"''': SERVES,
    "torchrun --nnodes 2 --nproc-per-node 8 --node-rank 0 --master-addr 10.0.0.1 --master-port 29500 "
    "-m automl train digits --epochs 20 --checkpoints /shared/digits --resume": OTHER_HOST,
    "export AUTOML_STORE=postgresql://me@db.example/automl": OTHER_HOST,
    "automl store copy sqlite:///automl.db postgresql://me@db.example/automl": OTHER_HOST,
    "automl doctor --service --store postgresql://me@db.example/automl": OTHER_HOST,
    "automl simulate curves/ --objective val_error:min --objective static:model_size:min --seeds 0:20 --json": CURVES,
    "automl simulate curves/ --objective val_error:min --objective cost_usd:min --sampler tpe --pruner none "
    "--slots 16": CURVES,
    "automl simulate curves/ --pool --objective valid_loss:min --objective static:work_per_step:min": CURVES,
}
"""Commands that are not run, with the reason."""

OWN_TASK = (
    "automl train own_task:Moons --param width=32 --epochs 5",
    "automl launch moons.yaml --dry-run",
    "automl launch moons.yaml",
    "automl explain moons 1",
)
OWN_DATA = (
    "automl launch --task tabular --data train.csv --target income --test-data test.csv",
    "automl launch --task text --data reviews.tsv --text sentence --label mood",
    "automl launch --task vision --data mnist",
    "automl launch --task language_model --data texts",
    "automl launch income.yaml --set budget.hours=1",
)
"""Commands that search for up to 15 minutes: they are interrupted after their first trial."""
WINE = (
    "python -c \"from sklearn.datasets import load_wine as d; d(as_frame=True).frame.to_csv('wine.csv', index=False)\"",
    'automl launch --task tabular --data wine.csv --target target --set budget="1 min"',
)
WINE_MODEL = (
    "automl trials wine --sort val_error",
    "automl export wine best --out wine-model",
    "automl predict wine-model wine.csv --out answers.csv",
)
TUTORIALS = (ROOT / "docs" / "start" / "script.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md")))
"""Pages whose commands are run in the order of the page, in a folder with the files of examples/tutorials."""
SAVED_SPEC = "automl launch --task tabular --data train.csv --target income --save-spec income.yaml --dry-run"
OWN_TABLE = "automl train tabular --option train=train.csv --option target=income"
TRAININGS = (
    "automl train own_task:Moons --param width=32 --epochs 5 --world-size 2",
    "automl train digits --epochs 3",
    "automl train digits --epochs 3 --world-size 2",
    "automl train digits --epochs 3 --world-size 2 --json",
    "automl train digits --epochs 3 --param batch_per_rank=128 --json",
    "automl train digits --epochs 3 --world-size 2 --profile --trace trace.json",
    "automl train digits --epochs 3 --tensorboard runs/digits",
    "automl train digits --epochs 20 --checkpoints runs/digits --resume",
    "automl train digits --epochs 20 --checkpoints runs/digits --mlflow sqlite:///mlflow.db",
    "torchrun --nproc-per-node 2 -m automl train digits --epochs 2",
    "automl doctor",
    "automl doctor --bandwidth",
)
COMPARED = (
    "automl compare digits --world-sizes 1,2,4",
    (
        "automl compare vision --option train=mnist --param architecture=cnn --param channels=16 --param depth=2 "
        "--param batch_per_rank=128 --param samples_per_epoch=12800 --param learning_rate=0.01 --epochs 5"
    ),
)
STUDY = (
    "export AUTOML_STORE=sqlite:///automl.db",
    "automl launch digits.yaml",
    "automl status digits --json",
    "automl status digits",
    "automl explain digits 3",
    "automl audit digits",
    "automl gc digits",
    "automl resume digits --set budget.usd=5",
    "automl stop digits",
    "automl resume digits",
    "automl prune-checkpoints digits",
    "automl prune-checkpoints digits --yes",
    "automl prune-checkpoints digits --keep best --keep 7 --yes",
)
DELETED = "automl delete digits"
MONEY = ("automl limit set user ann 50", "automl limit set project vision 400", "automl limit list")
BACKUP = "automl store backup backup-2026-11-25.db"
COMPLETION = (
    'eval "$(automl completion bash)"',
    "mkdir -p ~/.config/fish/completions && automl completion fish > ~/.config/fish/completions/automl.fish",
)
CONFIRMED, PROMOTED = "automl confirm moons 2@6", "automl promote moons 2@6"
REGISTRY = ("automl models", "automl predict models:/moons@champion new.jsonl")
IMAGE = "automl export moons best --docker moons-image"
PEOPLE = (
    "automl confirm ages 2 --seeds 5 --keep-models",
    "automl export ages 2 --ensemble --out ages",
    "automl ensemble ages --out ages-ensemble",
    "automl promote ages ensemble",
    "automl predict ages-ensemble new.csv",
)
PREDICTED = "automl predict model new.csv --out answers.csv"
CLUSTERS = (
    "automl export-cluster slurm digits.yaml --nodes 2 --gpus-per-node 4 --out digits.sbatch",
    (
        "automl export-cluster kuberay digits.yaml --nodes 4 --gpus-per-node 1 --image registry.example/digits:1 "
        "--out digits-rayjob"
    ),
    "automl export-cluster pytorchjob digits.yaml --nodes 2 --gpus-per-node 4 --param width=128 --out digits-training",
    (
        "automl export-cluster kustomize digits.yaml --nodes 2 --gpus-per-node 1 --image registry.example/automl:1 "
        "--out automl-base"
    ),
    "automl export-cluster compose digits.yaml --gpus-per-node 1 --out automl-compose",
)
RUN = {
    "automl launch digits.yaml --dry-run", *CLUSTERS,
    *WINE, *WINE_MODEL, *OWN_TASK, *OWN_DATA, SAVED_SPEC, OWN_TABLE, *TRAININGS, *COMPARED, *STUDY, DELETED,
    *COMPLETION, CONFIRMED, PROMOTED, *REGISTRY, IMAGE, *PEOPLE, PREDICTED, *MONEY, BACKUP,
    *(line for page in TUTORIALS for line in newcomer.commands_of(page) if line not in LEFT_OUT),
}  # fmt: skip
pytestmark = [pytest.mark.xdist_group("newcomer"), pytest.mark.medium, pytest.mark.timeout(1500)]


def test_every_command_of_the_documents_is_run_or_has_a_reason() -> None:
    found = newcomer.commands()
    assert len(found) > 60
    unknown = {line: pages for line, pages in found.items() if line not in RUN and line not in LEFT_OUT}
    assert not unknown, "neither run here nor listed with a reason"
    assert not (RUN | set(LEFT_OUT)) - set(found), "no page has these any more"
    assert not RUN & set(LEFT_OUT)


@pytest.mark.ray
def test_a_task_of_ones_own(place: Workplace) -> None:
    """The five minutes of its page, with fewer trials, and without a process for each command."""
    newcomer.moons(place.folder, trials=3)
    said = [place.run(*shlex.split(command, comments=True)[1:]).stdout for command in OWN_TASK]
    assert "val_error" in said[0]
    assert "Take " in said[2]
    assert "trial 1 of moons is" in said[3]
    assert (place.folder / "artifacts" / "moons" / "report.html").exists()


@pytest.mark.slow
def test_data_of_ones_own(tmp_path: Path) -> None:
    newcomer.table(tmp_path / "train.csv", rows=800, seed=0)
    newcomer.table(tmp_path / "test.csv", rows=200, seed=1)
    newcomer.reviews(tmp_path / "reviews.tsv")
    newcomer.mnist(tmp_path / "mnist")
    newcomer.texts(tmp_path / "texts")
    person = Newcomer(tmp_path)
    person.types(SAVED_SPEC)
    assert "target: income" in (tmp_path / "income.yaml").read_text(encoding="utf-8")
    person.types(OWN_TABLE)
    for command in OWN_DATA:
        person.launches_and_leaves(command)
        for file in (*tmp_path.glob("automl.db*"), *tmp_path.glob("mlflow.db*")):
            file.unlink()  # the next study may have the same name


@pytest.mark.slow
def test_the_readmes_table(tmp_path: Path) -> None:
    person = Newcomer(tmp_path)
    said = [person.types(command) for command in WINE]
    assert "Take " in said[-1]
    assert "automl export wine " in said[-1]
    for command in WINE_MODEL:
        person.types(command)
    assert (tmp_path / "answers.csv").read_text(encoding="utf-8").startswith("row,label,confidence,")


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial(page: Path, tmp_path: Path) -> None:
    newcomer.tutorials(tmp_path)
    person = Newcomer(tmp_path)
    for command in newcomer.commands_of(page):
        if command not in LEFT_OUT:
            person.types(command)


@pytest.mark.slow
def test_what_clusters_read_is_written(tmp_path: Path) -> None:
    newcomer.digits(tmp_path, trials=10)
    person = Newcomer(tmp_path)
    person.types("automl launch digits.yaml --dry-run")
    for command in CLUSTERS:
        person.types(command)
    assert {one.name for one in tmp_path.iterdir()} >= {"digits.sbatch", "digits-rayjob", "automl-compose"}


@pytest.mark.slow
@pytest.mark.parametrize("command", TRAININGS)
def test_one_training(command: str, tmp_path: Path) -> None:
    newcomer.moons(tmp_path)
    Newcomer(tmp_path).types(command)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMPARED)
def test_world_sizes_compared(command: str, tmp_path: Path) -> None:
    newcomer.mnist(tmp_path / "mnist")
    Newcomer(tmp_path).types(command)


@pytest.mark.slow
def test_a_study_from_launch_to_deletion(tmp_path: Path) -> None:
    newcomer.digits(tmp_path, trials=10)
    person = Newcomer(tmp_path)
    said = {command: person.types(command) for command in STUDY}
    assert json.loads(said["automl status digits --json"])["study"] == "digits"
    assert "trial 3 of digits is" in said["automl explain digits 3"]
    person.types(DELETED, answer="y\n")
    person.types("automl status digits", code=2)
    assert "_automl" in person.types(f"{COMPLETION[0]}; complete -p automl")
    person.types(COMPLETION[1])
    assert (tmp_path / ".config" / "fish" / "completions" / "automl.fish").stat().st_size > 100


@pytest.mark.slow
def test_a_model_goes_to_the_registry_and_answers(tmp_path: Path) -> None:
    newcomer.moons(tmp_path)
    person = Newcomer(tmp_path)
    person.types("automl launch moons.yaml")
    taken = json.loads(person.types("automl status moons --json"))["recommendation"]
    best = f"{taken['trial']}@{taken['epoch']}"
    person.types(CONFIRMED, instead={"2@6": best})
    person.types(PROMOTED, instead={"2@6": best})
    person.types("automl confirm moons cheapest && automl promote moons cheapest")  # the challenger
    (tmp_path / "new.jsonl").write_text("[0.1, 0.2]\n[1.5, -0.3]\n", encoding="utf-8")
    said = {command: person.types(command) for command in REGISTRY}
    assert "champion" in said["automl models"]
    assert "\n2," in said["automl predict models:/moons@champion new.jsonl"], "an answer for each row"
    person.types(IMAGE)
    assert (tmp_path / "moons-image" / "Dockerfile").exists()


@pytest.mark.slow
def test_an_ensemble_answers_rows_of_a_file(tmp_path: Path) -> None:
    newcomer.table(tmp_path / "train.csv", rows=600, seed=0)
    newcomer.table(tmp_path / "new.csv", rows=20, seed=2)
    person = Newcomer(tmp_path)
    launch = "automl launch --task tabular --data train.csv --target income --set study=ages --set budget.trials=4"
    person.types(launch)
    for command in PEOPLE:
        person.types(command)
    person.types("automl export ages best --out model")
    person.types(PREDICTED)
    assert len((tmp_path / "answers.csv").read_text(encoding="utf-8").splitlines()) == 21


def test_limits_and_a_backup(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.delenv("AUTOML_STORE", raising=False)
    here = InProcess(tmp_path, capsys, monkeypatch)
    answers = [here.run(*shlex.split(command)[1:]) for command in (*MONEY, BACKUP)]
    assert [code for code, _, _ in answers] == [0] * 4, answers
    *_, (_, listed, _), (_, out, err) = answers
    assert listed.splitlines() == ["project vision: $0 of $400 are spent", "user ann: $0 of $50 are spent"]
    assert "and compared each row" in out + err
    assert (tmp_path / "backup-2026-11-25.db").exists()
