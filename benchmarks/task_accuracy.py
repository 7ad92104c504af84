"""Search with the built-in tasks on real data, beside tuned rivals, or train one with parameters known to be good.

    python benchmarks/task_accuracy.py --data ../shared/data [--minutes 10] [--sets adult,wine] [--json]
    python benchmarks/task_accuracy.py mnist --data ../shared/data [--seeds 3] [--json]
    python benchmarks/task_accuracy.py language_model --text FILE_OR_FOLDER [--separator line]

The first form launches a study for each data set, and gives each rival the same time. With a case one trial is trained,
and measured on the test part: one line for each seed and their median. The folder holds mnist/, adult/ and sst2/ as
docs/tasks.md names them; a language model takes any text, of which a tenth is its test part, and is compared with a
table of pairs of tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accuracy_parts.comparison import CONTESTANTS, compare, summary
from accuracy_parts.data_sets import CLASSIC, LARGE
from bigram import BigramTable
from turnaround import machine

from trainers.contract.task_loading import load_task
from trainers.loop.evaluation import evaluate
from trainers.loop.trainer import Trainer
from trainers.protocol import TrialSpec
from trainers.ranks.process_group import Group
from trainers.tasks.language_model import LanguageModel
from trainers.tasks.table.table_space import tabular_first_trials
from trainers.tasks.words.text_space import text_first_trials


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A task, its files below the data folder, and how to train it.

    Attributes:
        task: Name of the task.
        files: Files or folders below the data folder, by the name of the option.
        params: Parameters of the trial.
        epochs: Number of epochs.
        options: Further options of the task.
        figure: Metric of the test part of which the median is printed.
    """

    task: str
    files: dict[str, str]
    params: dict[str, Any]
    epochs: int
    options: dict[str, Any] = field(default_factory=dict)
    figure: str = "val_accuracy"


ADULT = {"train": "adult/adult-train.csv", "test": "adult/adult-test.csv"}
SST2 = {"train": "sst2/train.tsv", "validation": "sst2/dev.tsv", "test": "sst2/test.tsv"}
CASES = {
    "mnist": Case(
        task="vision",
        files={"train": "mnist"},
        params={
            "optimizer": "adamw",
            "learning_rate": 3e-3,
            "batch_per_rank": 128,
            "weight_decay": 0.05,
            "channels": 24,
            "depth": 2,
            "shift": 1,
            "dropout": 0.3,
        },
        epochs=8,
    ),
    "adult": Case(
        task="tabular",
        files=ADULT,
        params=tabular_first_trials(rows=0)[0],
        epochs=15,
    ),
    "adult_network": Case(
        task="tabular",
        files=ADULT,
        params={
            "optimizer": "adamw",
            "learning_rate": 1e-3,
            "batch_per_rank": 256,
            "weight_decay": 0.01,
            "dropout": 0.2,
        },
        epochs=12,
    ),
    "sst2_tfidf": Case(
        task="text",
        files=SST2,
        params=text_first_trials(has_tfidf=True)[0],
        epochs=4,
    ),
    "sst2": Case(
        task="text",
        files=SST2,
        params=text_first_trials(has_tfidf=True)[1],
        epochs=4,
    ),
    "sst2_transformer": Case(
        task="text",
        files=SST2,
        params=text_first_trials(has_tfidf=True)[2],
        epochs=6,
    ),
    "language_model": Case(
        task="language_model",
        files={},
        options={"length": 64, "vocabulary": 1024, "test_share": 0.1},
        params={
            "optimizer": "adamw",
            "learning_rate": 6e-3,
            "batch_per_rank": 16,
            "weight_decay": 0.1,
            "clip_norm": 1.0,
            "width": 96,
            "depth": 2,
            "heads": 4,
            "dropout": 0.1,
        },
        epochs=8,
        figure="val_loss",
    ),
}
SEPARATORS = {"empty_line": "\n\n", "line": "\n", "file": ""}
"""What stands between the documents of a text file, by the value of `--separator`."""


def measure(case: Case, options: dict[str, Any], *, seed: int, threads: int) -> dict[str, float]:
    """Return the test metrics after the last epoch, with `seconds` of training and reading."""
    started = time.monotonic()
    task = load_task(case.task, options)
    spec = TrialSpec(
        study="accuracy",
        trial=0,
        task=case.task,
        task_options=options,
        params=case.params,
        training={"epochs": case.epochs},
        seed=seed,
        cpus_per_rank=threads,
    )
    trainer = Trainer(spec, task, group=Group(device=torch.device("cpu")))
    for _ in trainer.advance(case.epochs):
        pass
    seconds = time.monotonic() - started
    found = {**evaluate(trainer.module, task, case.params, part="test"), "seconds": seconds}
    return found | (bigram_figures(task) if isinstance(task, LanguageModel) else {})


def bigram_figures(task: LanguageModel) -> dict[str, float]:
    """Return the loss of a table of pairs on the same test tokens, and how many tokens it counted and was tested on."""
    inputs, targets = task.train_data({})
    table = BigramTable(inputs, targets, task.tokenizer.get_vocab_size())
    table.tune(*task.validation_data({}))
    tested = task.test_data({})
    return {
        "bigram_loss": table.loss(*tested),
        "train_tokens": float(targets.numel()),
        "test_tokens": float(tested[1].numel()),
    }


def options_of(case: Case, given: argparse.Namespace) -> dict[str, Any]:
    """Return the options of the case's task."""
    named = {name: str((given.data / path).absolute()) for name, path in case.files.items()}
    if case.task == "language_model":
        named = {"train": str(given.text.absolute()), "separator": SEPARATORS[given.separator]}
    return {**case.options, **named}


def compare_studies(given: argparse.Namespace) -> None:
    """Print what studies and their rivals reach."""
    with tempfile.TemporaryDirectory() as folder:
        rows = compare(
            given.sets,
            given.contestants,
            minutes=given.minutes,
            seeds=given.seeds,
            folder=Path(folder),
            data=given.data,
        )
    document = {"minutes": given.minutes, "rows": rows, **summary(rows), "machine": machine()}
    if given.json:
        print(json.dumps(document, indent=1))
        return
    for row in rows:
        beside = f", score {row['score']:.3f}" if "score" in row else ""
        print(f"{row['data']} seed {row['seed']}: {row['contestant']} error {row['error']:.4g}{beside}")
    print(f"mean scores: {document['mean_score']}")


def train_case(given: argparse.Namespace) -> None:
    """Print what a task reaches with the parameters of a case."""
    case = CASES[given.case]
    options = options_of(case, given)
    rows = [measure(case, options, seed=seed, threads=given.threads) for seed in range(given.seeds)]
    median = statistics.median(row[case.figure] for row in rows)
    name = case.figure.removeprefix("val_")
    if given.json:
        print(json.dumps({"case": given.case, "rows": rows, f"median_test_{name}": median}))
        return
    for seed, row in enumerate(rows):
        beside = f", a table of pairs {row['bigram_loss']:.4f}" if "bigram_loss" in row else ""
        print(f"{given.case} seed {seed}: test {name} {row[case.figure]:.4f}{beside} in {row['seconds']:.0f} s")
    print(f"{given.case}: median test {name} {median:.4f}")


def names_of(*allowed: str) -> Callable[[str], list[str]]:
    """Return what reads names with commas between them."""

    def read(text: str) -> list[str]:
        names = text.split(",")
        if unknown := set(names) - set(allowed):
            raise argparse.ArgumentTypeError(f"found {min(unknown)}, allowed: {', '.join(allowed)}")
        return names

    return read


def main() -> None:
    """Read the command line and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "case", nargs="?", choices=CASES, help="a task and its parameters; studies are launched without"
    )
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--minutes", type=float, default=10.0, help="of studies and rivals: time of each search")
    parser.add_argument("--sets", type=names_of(*CLASSIC, *LARGE), default=[*CLASSIC, *LARGE], help="of studies: data")
    parser.add_argument("--contestants", type=names_of(*CONTESTANTS), default=list(CONTESTANTS))
    parser.add_argument("--text", type=Path, help="of language_model: a text file, or a folder of *.txt")
    parser.add_argument("--separator", choices=SEPARATORS, default="empty_line", help="what stands between documents")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of a case: threads of torch")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.case is None:
        compare_studies(given)
        return
    if CASES[given.case].task == "language_model" and given.text is None:
        parser.error("--text: found nothing, allowed: a text file, or a folder of *.txt")
    train_case(given)


if __name__ == "__main__":
    main()
