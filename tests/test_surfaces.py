"""Whatever people and programs held on to is still there, or the changelog says what to use instead."""

import json
import re
from fnmatch import fnmatchcase

from tests.support.paths import ROOT
from tests.support.surfaces import FROZEN, surfaces

GONE = {
    "commands: ab": "The command `ab`",
    "commands: ab *": "The command `ab`",
    "commands: serve-model --answers*": "`--answers`, `--answers-mib`",
    "commands: serve-model --challenger": "`--challenger`",
    "commands: serve-model --share": "`--share`",
    "commands: * --share-on": "`launch --share-on` and `resume --share-on`",
    "environment variables: OTEL_*": "variables `OTEL_*`",
    "extras: otel": "the extra `otel`",
    "pages: docs/search-experiments.md": "The page `docs/search-experiments.md`",
}
"""Patterns of what was removed on purpose, such as `commands: ab*`, with words of its line under "Removed"."""


def _named(entries: dict[str, list[str]]) -> set[str]:
    return {f"{kind}: {entry}" for kind, names in entries.items() for entry in names}


def _is_gone(entry: str) -> bool:
    return any(fnmatchcase(entry, pattern) for pattern in GONE)


def test_nothing_gets_lost_unsaid() -> None:
    missing = _named(json.loads(FROZEN.read_text(encoding="utf-8"))) - _named(surfaces())
    assert sorted(entry for entry in missing if not _is_gone(entry)) == []
    unused = [pattern for pattern in GONE if not any(fnmatchcase(entry, pattern) for entry in missing)]
    assert unused == [], "nothing of the frozen list that is missing has these patterns"


def test_the_changelog_names_what_is_gone() -> None:
    page = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    removed = re.findall(r"(?ms)^### Removed\n(.*?)(?=^##|\Z)", page)
    removed += [file.read_text(encoding="utf-8") for file in (ROOT / "changes").glob("*.removed.md")]
    assert [words for words in GONE.values() if words not in "".join(removed)] == []
