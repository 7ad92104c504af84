"""What the documentation says is there: files, commands, keys, defaults, specs."""

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import click
import pytest
import yaml
from pydantic import BaseModel

import automl
from automl.cli import COMMANDS, cli
from automl.terminal.echo import FAILED, INTERRUPTED, NOTHING_COMPLETE, WRONG_INPUT
from reports.gallery import Gallery
from search_spaces.space import Space
from studies.search.pruners.by_name import BUILT_IN, options_with_defaults
from studies.spec.study_spec import StudySpec, parse_spec
from tests.support.paths import ROOT
from tests.support.study_factory import build_study
from trainers.protocol import Failure
from trainers.trainer_options import TRAINER_PARAMETERS

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md",
         ROOT / "SECURITY.md", ROOT / "CODE_OF_CONDUCT.md", *sorted((ROOT / "docs").rglob("*.md")),
         ROOT / "benchmarks" / "README.md", ROOT / "changes" / "README.md"]  # fmt: skip
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`]+)`")
DOCS_LIST = ROOT / "docs" / "README.md"
REPLACED = (
    "believers?", "purse", "roster", "upcoming", "break-even price", "soundness", "the coin", "twins?",
)  # fmt: skip
PLACEHOLDERS = {"TRIAL@EPOCH": "3@9", "TRIAL": "3", "[TASK]": "", "[STUDY]": ""}


def blocks(page: Path, *languages: str) -> list[str]:
    return [text for language, text in BLOCK.findall(page.read_text(encoding="utf-8")) if language in languages]


def prose(page: Path) -> str:
    """The page without its blocks, with line breaks inside a paragraph undone."""
    return re.sub(r"\n(?!\n)", " ", BLOCK.sub("", page.read_text(encoding="utf-8")))


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def links() -> list[tuple[Path, str]]:
    found = re.compile(r"\]\(([^)\s]+)\)")
    return [(page, target) for page in PAGES for target in found.findall(BLOCK.sub("", page.read_text("utf-8")))]


def test_every_relative_link_leads_somewhere_and_images_are_small() -> None:
    assert len(links()) > 50
    for page, target in links():
        if target.startswith(("https://", "http://")):
            continue
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(there), f"{page.name}: {target}"
    for image in (ROOT / "docs" / "images").iterdir():
        assert image.stat().st_size < 300_000, image.name


def commands() -> Iterator[tuple[str, str]]:
    """Every `automl ...` of a shell block or of a text, with the page that has it."""
    for page in PAGES:
        for block in blocks(page, "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith("automl "):
                    yield page.name, line
        for code in CODE.findall(prose(page)):
            if code.startswith("automl "):
                yield page.name, code


def parse(line: str) -> None:
    """Let click read a command without running it."""
    for placeholder, value in PLACEHOLDERS.items():
        line = line.replace(placeholder, value)
    words = shlex.split(line, comments=True)[1:]
    name = words.pop(0)
    command = cli.get_command(click.Context(cli), name)
    assert command is not None, f"no command {name}"
    try:
        command.make_context(name, words)
    except click.MissingParameter:
        assert not words, f"{line!r} is given in part"  # a bare name in running text


def test_every_command_is_one() -> None:
    wrong = []
    for page, line in sorted(set(commands())):
        try:
            parse(line)
        except click.ClickException as error:
            wrong.append(f"{page}: {line}: {error.format_message()}")
    assert wrong == []


def test_the_readme_is_short_and_shows_the_example_and_the_list_of_pages_leads_to_all() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 900
    targets = {(page.parent / target.partition("#")[0]).resolve() for page, target in links() if page == DOCS_LIST}
    assert {*(ROOT / "docs").glob("*.md")} - targets == {DOCS_LIST}
    for page, example in (("README.md", "search_digits.py"), ("docs/own-task.md", "own_task.py")):
        code = (ROOT / "examples" / example).read_text(encoding="utf-8")
        assert len(code.splitlines()) <= 40
        assert any(block.rstrip() in code for block in blocks(ROOT / page, "python") if len(block.splitlines()) > 5)


def test_nothing_asks_for_a_package_that_no_index_has() -> None:
    """Without a release `pip install automl-search[...]` works only where the checkout is installed already."""
    assert "[0.1.0] - unreleased" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), "released: name the package"
    folders = ("automl", "reports", "studies", "trainers", "search_spaces", "docs", "examples")
    files = [file for name in folders for kind in ("*.py", "*.md") for file in (ROOT / name).rglob(kind)]
    asking = [
        str(file) for file in (ROOT / "README.md", *files) if "automl-search[" in file.read_text(encoding="utf-8")
    ]
    assert asking == []


def test_every_command_is_documented_with_its_options() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    both = text + (ROOT / "docs" / "simulation.md").read_text(encoding="utf-8")
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert f"| `automl {name}" in text, name
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert re.search(rf"{parameter.opts[0]}\b", both if name == "simulate" else text), (
                    name,
                    parameter.opts,
                )


def commands_of(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """A command, or those of a group, by the words that call them."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for word in command.list_commands(context):
        inner = command.get_command(context, word)
        assert inner is not None
        yield from commands_of(inner, f"{name} {word}".strip())


def test_commands_without_json_and_those_that_set_keys_are_named() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    (told,) = re.findall(r"\| `--json` \| all but (.*?) \|", text)
    without = {
        name
        for name, command in commands_of(cli, "")
        if not any("--json" in parameter.opts for parameter in command.params)
    }
    assert set(re.findall(r"`([^`]+)`", told)) == without
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    (told,) = re.findall(r"\| `--set PATH=VALUE` \| (.*?) \|", text)
    having = {
        name for name, command in commands_of(cli, "") if any("--set" in parameter.opts for parameter in command.params)
    }
    assert set(re.findall(r"`([^`]+)`", told)) == having


def test_every_figure_exit_code_and_failure_is_documented_and_no_other() -> None:
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|", text.partition("## Figures")[2].partition("\n## ")[0], re.MULTILINE)
    words = {"val_error": "METRIC", "cost_usd": "METRIC", **dict.fromkeys(build_study(40).trials[0].params, "NAME")}
    names = {".".join(words.get(word, word) for word in name.split(".")) for name in Gallery(build_study(40))}
    assert {name for row in rows for name in CODE.findall(row)} == names
    table = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8").partition("| exit code |")[2].partition("\n\n")[0]
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert documented == {0, FAILED, WRONG_INPUT, NOTHING_COMPLETE, INTERRUPTED}
    table = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8").partition("| failure |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(get_args(Failure)) - {"unreadable"}


def test_the_glossary_explains_each_word_and_symbol_once() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", page, re.MULTILINE)
    words = [word for word in words if word != "word"]
    assert len(words) > 40
    assert all(f"\n## {name}\n" in page for name in ("Studies and trials", "Decisions", "Devices and time", "Money"))
    assert [word for word, count in Counter(map(str.lower, words)).items() if count > 1] == []
    notation = (ROOT / "docs" / "search.md").read_text(encoding="utf-8").partition("| symbol |")[2].partition("\n\n")[0]
    symbols = re.findall(r"^\| ([^|]+) \|", notation, re.MULTILINE)
    assert len(symbols) > 20
    assert len(set(symbols)) == len(symbols)


@pytest.mark.medium
def test_replaced_words_are_gone() -> None:
    """Older words are in the changelog alone."""
    for page in PAGES:
        if page.name != "CHANGELOG.md":
            text = page.read_text(encoding="utf-8")
            assert not re.findall(rf"\b(?:{'|'.join(REPLACED)})\b", text, re.IGNORECASE), page.name


def leaves(model: type[BaseModel], ahead: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of the spec as a dotted path, with its default."""
    for name, field in model.model_fields.items():
        path = ahead + name
        inner = [one for one in (field.annotation, *get_args(field.annotation)) if is_section(one)]
        if path == "search.pruner.options":
            continue
        if not inner or name == "pruner":
            yield path, field.get_default(call_default_factory=True) if not field.is_required() else "required"
        for section in inner:
            yield from leaves(section, f"{path}.")
        if path == "search.pruner.name":
            # The options of built-in pruners are fields of theirs, and stand beside the name.
            options = [options_with_defaults(pruner, {}) for pruner in BUILT_IN]
            yield from {f"{ahead}{option}": default for one in options for option, default in one.items()}.items()


def is_section(one: object) -> bool:
    return isinstance(one, type) and issubclass(one, BaseModel)


def documented() -> dict[str, str]:
    """The keys of docs/spec.md, with the text of their default."""
    row = re.compile(r"^\| `([\w.]+)` \| (.+?) \|", re.MULTILINE)
    return dict(row.findall((ROOT / "docs" / "spec.md").read_text(encoding="utf-8")))


def test_keys_and_parameters_are_documented_with_their_defaults_and_no_other() -> None:
    assert sorted(documented()) == sorted(path for path, _ in leaves(StudySpec))
    texts = documented()
    in_words = {"study", "task", "space", "objectives.metric", "search.pruner"}
    for path, default in leaves(StudySpec):
        if path in in_words:
            continue
        given = yaml.safe_load(texts[path].strip("`"))
        expected = [] if default == () else default
        assert given == expected, path
    row = re.compile(r"^\| `(\w+)` \| `([^`]+)` \|", re.MULTILINE)
    table = (ROOT / "docs" / "search-spaces.md").read_text(encoding="utf-8").partition("## Parameters")[2]
    texts = dict(row.findall(table))
    training = {path.removeprefix("training.") for path in documented() if path.startswith("training.")}
    own = {name: one.default for name, one in TRAINER_PARAMETERS.items() if name not in training}
    assert {name: yaml.safe_load(text) for name, text in texts.items()} == own


def test_every_spec_of_documentation_and_demo_is_one_and_both_forms_agree() -> None:
    specs = [(page.name, block) for page in PAGES for block in blocks(page, "yaml")]
    assert len(specs) >= 3
    for page, block in specs:
        spec = parse_spec(yaml.safe_load(block), page)
        assert spec.task
    spec = parse_spec(yaml.safe_load((ROOT / "examples" / "digits.yaml").read_text(encoding="utf-8")))
    assert spec.study == "digits"
    page = ROOT / "docs" / "search-spaces.md"
    (code,), (form,) = blocks(page, "python"), blocks(page, "yaml")
    scope: dict[str, Any] = {}
    exec(code, scope)
    written = Space.from_dict(yaml.safe_load(form)["space"]).to_dict()
    in_python = scope["space"].to_dict()
    assert {name: written[name] for name in ("optimizer", "momentum", "beta2")} == {
        name: in_python[name] for name in ("optimizer", "momentum", "beta2")
    }


def test_python_blocks_compile_and_every_name_of_the_api_is_documented() -> None:
    for page in PAGES:
        for block in blocks(page, "python"):
            compile(block, page.name, "exec")
    text = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("python.md", "training-function.md"))
    assert [name for name in automl.__all__ if not re.search(rf"\b{name}\b", text)] == []
    members = {name for name in vars(automl.Study) if not name.startswith("_")}
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    assert [name for name in sorted(members) if not re.search(rf"`(study\.)?{name}\b", page)] == []


def test_each_promise_about_security_names_a_test_that_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "security.md").read_text(encoding="utf-8")))
    written = {
        name for file in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", file.read_text())
    }
    assert len(named) > 10
    assert named <= written
