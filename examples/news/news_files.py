"""Converts news files, in AG News's format or with two columns, into one format, or makes headlines up."""

import csv
import random

CLASSES = ("World", "Sports", "Business", "Sci/Tech")
"""Meaning of AG News's labels 1 to 4."""
STRAY, WRONG = 0.4, 0.02
"""Shares of made-up words that may be another class's, and of rows with a class by chance: no model is always right."""
MADE_ROWS = {"train": 2000, "test": 600}

_WHO = (
    ("rebels", "the foreign minister", "peace envoys", "border guards", "election observers", "the parliament"),
    ("the champions", "the goalkeeper", "the home side", "a young striker", "the relay team", "the rookie pitcher"),
    ("shareholders", "the central bank", "the airline", "oil traders", "the carmaker", "the insurer"),
    ("astronomers", "the chip maker", "a software firm", "the space agency", "biologists", "the browser's authors"),
)
_DO = (
    ("sign", "reject", "denounce", "boycott"),
    ("win", "lose", "celebrate", "miss"),
    ("cut", "buy", "forecast", "refinance"),
    ("discover", "patch", "simulate", "unveil"),
)
_WHAT = (
    ("a ceasefire", "the treaty", "new elections", "sanctions", "a hostage exchange", "the coalition pact"),
    ("the final", "a penalty shoot-out", "the derby", "the trophy", "extra innings", "the marathon"),
    ("quarterly profits", "the dividend", "a takeover bid", "interest rates", "crude futures", "the merger"),
    ("a distant planet", "the new processor", "a security hole", "the genome", "a wireless network", "a robot arm"),
)
_PLACES = ("OSLO", "LAGOS", "LIMA", "HANOI", "TURIN", "PERTH", "SEOUL", "DENVER")
_TITLES = ("{who} to {do} {what}", "{what}: will {who} {do} again?", "why {who} had to {do} {what}")
_DESCRIPTIONS = (
    "{place} (Wire) - {who} said on Monday that they would {do} {what}, while {who} spoke of {what}.",
    "{place} (Wire) - It was about {what}: {who} had to {do}, to the surprise of {who}.",
    "This week {who} in {place} did not {do} {what}. Others expect {what} soon.",
)


def write(path, given=None):
    """Write a CSV file with the columns `label` and `text`.

    Args:
        path: File to write, train.csv or test.csv.
        given: File to read the rows from; None makes headlines up, the same each time.

    Raises:
        ValueError: A row has neither form.
    """
    rows = _read(given) if given else _made(random.Random(path.stem), MADE_ROWS[path.stem])
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("label", "text"), *rows])


def one_of_each(path):
    """Return the last text of each class as (label, text), for at most four classes."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(dict(list(csv.reader(file))[1:]).items())[:4]


def _read(path):
    """Return (label, text) of each row, in AG News's format or in two columns, of which the longer is the text."""
    form = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if path.suffix == ".tsv" else {}
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file, **form))
    allowed = "in all rows a class from 1 to 4, title, description; or in all a text and a label"
    if not rows:
        raise ValueError(f"{path}: there are no rows. Write {allowed}")
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]) or len(row) not in {2, 3} or (len(row) == 3 and row[0] not in {"1", "2", "3", "4"}):
            raise ValueError(f"{path}: row {number}: found {row[:4]}, allowed: {allowed}")
    if len(rows[0]) == 3:
        return [(CLASSES[int(number) - 1], f"{title}. {description}") for number, title, description in rows]
    text = max((0, 1), key=lambda column: sum(len(row[column]) for row in rows))
    return [(row[1 - text], row[text]) for row in rows]


def _made(chance, rows):
    for row in range(rows):
        subject = row % len(CLASSES)
        told = chance.choice(CLASSES) if chance.random() < WRONG else CLASSES[subject]
        yield told, f"{_filled(_TITLES, subject, chance)}. {_filled(_DESCRIPTIONS, subject, chance)}"


def _filled(templates, subject, chance):
    text = chance.choice(templates).replace("{place}", chance.choice(_PLACES))
    for place, words in (("{who}", _WHO), ("{do}", _DO), ("{what}", _WHAT)):
        while place in text:
            words_class = chance.randrange(len(CLASSES)) if chance.random() < STRAY else subject
            text = text.replace(place, chance.choice(words[words_class]), 1)
    return text[0].upper() + text[1:]
