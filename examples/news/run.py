"""Trains and serves a news classifier, from a file of headlines to answers over HTTP, by commands you could type.

python examples/news/run.py                                       # made-up headlines
python examples/news/run.py --train train.csv --test test.csv     # AG News's form, or texts and labels
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import news_files

import automl

HERE = Path(__file__).parent.absolute()


def main():
    asked = options()
    files = {part: getattr(asked, part) and Path(getattr(asked, part)).absolute() for part in ("train", "test")}
    checkpoint = asked.checkpoint and Path(asked.checkpoint).absolute()
    Path(asked.folder).mkdir(parents=True, exist_ok=True)
    os.chdir(asked.folder)  # where the commands keep studies, models and the registry
    try:
        for part, file in files.items():
            news_files.write(Path(f"{part}.csv"), file)
    except (OSError, ValueError) as error:
        print(f"news: {error}", file=sys.stderr)
        sys.exit(2)
    spec = "distilbert.yaml" if checkpoint else "news.yaml"
    shutil.copy(HERE / spec, spec)
    changes = [*asked.changes, *([f"task_options.checkpoint={checkpoint}"] if checkpoint else [])]

    run("launch", spec, *(f"--set={change}" for change in changes))
    study = automl.load("news")
    best = study.best("val_error")
    compared = answer_of("compare", "text", "--epochs=3", *as_options(study.record.spec["task_options"], best.params))
    confirmed = answer_of("confirm", "news", f"{best.trial}@{best.epoch}", f"--seeds={asked.seeds}")
    run("promote", "news", f"{best.trial}@{best.epoch}")
    with served("models:/news@champion") as address:
        for label, text in news_files.one_of_each(Path("test.csv")):
            show_prediction(text, label, prediction(address, text))
    show_figures(confirmed, compared["world_sizes"])


def options():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--train", help="file to learn from; without it headlines are made up")
    parser.add_argument("--test", help="file of the same form, which the search never sees")
    parser.add_argument("--folder", default="artifacts/news", help="folder of all written files (%(default)s)")
    parser.add_argument("--checkpoint", help="folder of a model such as DistilBERT to fine-tune; else from scratch")
    parser.add_argument("--seeds", type=int, default=3, help="trainings that confirm the best trial (%(default)s)")
    parser.add_argument("--set", dest="changes", metavar="PATH=VALUE", action="append", default=[],
                        help="a key of the spec, such as budget.trials=30; repeat it")  # fmt: skip
    asked = parser.parse_args()
    if (asked.train is None) != (asked.test is None):
        parser.error("--train and --test belong together. Give both, or neither")
    return asked


def command(*arguments):
    """Print a command of automl, and return the arguments that run it in a new process."""
    print("$ automl", *arguments, flush=True)
    return [sys.executable, "-m", "automl", *arguments]


def run(*arguments, **options):
    """Run a command of automl. If the command fails, exit with its exit code, because it has printed the reason."""
    done = subprocess.run(command(*arguments), check=False, **options)  # noqa: S603 - our own command
    if done.returncode:
        sys.exit(done.returncode)
    return done


def answer_of(*arguments):
    """Run a command of automl, and return its JSON output."""
    return json.loads(run(*arguments, "--json", stdout=subprocess.PIPE).stdout)


def as_options(task_options, params):
    """Yield a training of a study as options of `automl compare`, except the number of ranks and the test file."""
    yield from (f"--option={name}={value}" for name, value in task_options.items() if name != "test")
    yield from (f"--param={name}={value}" for name, value in params.items() if name != "world_size")


@contextmanager
def served(model):
    """Serve a model on a free port until the `with` block ends. Yields the server's address."""
    asked = command("serve-model", model, "--port=0", "--mlflow=sqlite:///mlflow.db")
    with subprocess.Popen(asked, stderr=subprocess.PIPE, text=True) as server:  # noqa: S603 - our own command
        try:
            yield address_in(server.stderr) or sys.exit(server.wait())
        finally:
            server.terminate()
            server.wait()


def address_in(lines):
    """Print the server's output until it prints its address, and return the address, or None if it ends before."""
    for line in lines:
        print(line, end="", file=sys.stderr)
        if found := re.search(r"^serving .* at (http[^;]+)", line):
            return found[1]
    return None


def prediction(address, text):
    with urlopen(f"{address}/predict", json.dumps({"row": text}).encode(), timeout=30) as response:  # noqa: S310 - http
        return json.load(response)


def show_prediction(text, label, told):
    likely = sorted(told["probabilities"].items(), key=lambda one: -one[1])
    print(text[:110])
    print(f"    label {told['label']} (it is {label}), confidence {told['confidence']:.3f}, probabilities", end=" ")
    print(", ".join(f"{name} {probability:.3f}" for name, probability in likely))


def show_figures(confirmed, ranks):
    accuracy = confirmed["trials"][0]["test"]["val_accuracy"]
    deviation = "" if accuracy["deviation"] is None else f" ± {accuracy['deviation']:.1%}"
    one, two = ranks
    print(f"\ntest accuracy   {accuracy['mean']:.1%}{deviation}, {confirmed['seeds']} fresh seeds")
    print(f"samples/s       {one['samples_per_second']:,.0f} on one rank, {two['samples_per_second']:,.0f} on two")
    print(f"efficiency      {two['efficiency']:.0%} of two ranks, {two['speed_up']:.2f} times the speed of one")
    print(f"spent           ${confirmed['study_cost_usd']:.4f} on the search and its confirmation")


if __name__ == "__main__":
    main()
