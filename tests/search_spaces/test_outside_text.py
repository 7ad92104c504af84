"""Text from outside: what a store is given, and what a terminal is shown."""

import io
import json
import sqlite3
import unicodedata
from contextlib import closing

from hypothesis import given, settings

from automl.terminal.echo import echo
from automl.terminal.output import SafeConsole, print_json
from search_spaces.untrusted_text import LONGEST_STORED, escaped, storable, storable_deep
from tests.support.any_text import any_text
from tests.support.paths import ROOT

NOTE = 60
"""Number of characters that the line with the number of those left out may take."""


@settings(max_examples=50)
@given(any_text)
def test_what_is_stored_is_text_of_limited_length(text: str) -> None:
    safe = storable(text)
    safe.encode("utf-8")
    assert "\x00" not in safe
    assert len(safe) <= LONGEST_STORED + NOTE
    assert storable(safe) == safe, "as when a store is copied"
    with closing(sqlite3.connect(":memory:")) as connection:
        assert connection.execute("select ?", (safe,)).fetchone() == (safe,)
    if text.isprintable() and len(text) <= LONGEST_STORED:
        assert safe == text
    assert json.loads(json.dumps(storable_deep({text: [text]}))) == {safe: [safe]}


@settings(max_examples=50)
@given(any_text)
def test_a_terminal_is_shown_no_control_character(text: str) -> None:
    assert_harmless(escaped(text))
    assert escaped(escaped(text)) == escaped(text)


def test_everything_that_is_printed_is_escaped(capsys) -> None:  # type: ignore[no-untyped-def]
    from rich.table import Table
    from rich.text import Text

    from tests.support.any_text import HOSTILE

    for text in HOSTILE[:-1]:
        echo(text)
        echo(text, err=True)
        print_json({text: text})
        out = io.StringIO()
        console = SafeConsole(file=out, force_terminal=True, color_system="truecolor", width=200)
        table = Table(title=Text(text))
        table.add_column(Text(text))
        table.add_row(Text(text))
        console.print(table)
        console.print(text, markup=False, highlight=False)
        console.print(Text("green", style="green"))
        shown = out.getvalue()
        assert "\x1b[32mgreen\x1b[0m" in shown, "our own colours stay"
        for style in ("\x1b[32m", "\x1b[3m", "\x1b[1m", "\x1b[0m"):
            shown = shown.replace(style, "")
        assert_harmless(shown)
    said = capsys.readouterr()
    assert_harmless(said.out)
    assert_harmless(said.err)


def assert_harmless(shown: str) -> None:
    shown.encode("utf-8")
    for character in shown:
        assert character in "\t\n" or unicodedata.category(character) not in {"Cc", "Cs", "Zl", "Zp"}, ascii(character)
        assert unicodedata.bidirectional(character) not in {
            "LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI",
        }  # fmt: skip


def test_there_is_one_way_to_the_terminal() -> None:
    offenders = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "automl").rglob("*.py")
        if ("click.echo(" in path.read_text() and path.name != "echo.py")
        or ("(Console)" not in path.read_text() and " Console(" in path.read_text())
    ]
    assert offenders == []


def test_the_middle_of_a_very_long_text_is_left_out() -> None:
    safe = storable("begin" + "x" * 10**7 + "end")
    assert len(safe) <= LONGEST_STORED + NOTE
    assert storable(safe) == safe, "as when a store is copied"
    assert safe.startswith("beginx")
    assert safe.endswith("xend")
    assert "9900008 characters are left out" in safe
