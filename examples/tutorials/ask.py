"""Sends the rows of a CSV file to a served model, and prints its answers: python ask.py new.csv [URL]."""

import csv
import json
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path


def ask(rows, url="http://127.0.0.1:8000", attempts=3):
    """Return an answer for each row. Repeats a request after 429, 503 or a broken connection, which is harmless."""
    body = json.dumps({"rows": rows}).encode()
    for left in reversed(range(attempts)):
        try:
            with urllib.request.urlopen(f"{url}/predict/batch", body) as reply:
                return json.load(reply)["answers"]
        except urllib.error.HTTPError as error:
            if error.code not in (429, 503) or not left:
                raise SystemExit(f"{error.code}: {json.load(error)['detail']}") from error
            time.sleep(float(error.headers.get("Retry-After", 1)))
        except (urllib.error.URLError, ConnectionError):
            if not left:
                raise
            time.sleep(1)
    raise AssertionError


if __name__ == "__main__":
    with Path(sys.argv[1]).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row, answer in zip(rows, ask(rows, *sys.argv[2:]), strict=True):
        print(f"{answer['label']} ({answer['confidence']:.0%})", row)
