#!/usr/bin/env python
"""How long a report takes to write, how large it is, and how soon a browser shows its first picture.

    python benchmarks/report.py --json [--trials 60 1000 10000] [--epochs 50] [--no-browser]

Studies are made up: ten parameters, two objectives, trials that are pruned at epochs 3 and 9, and the whole ledger.
`write_seconds` is the whole of `write_report` in a process of its own, the imports that it brings included;
`write_cpu_seconds` is the processor time of it, which a busy machine changes less.
`first_picture_seconds` goes from the start of the navigation to the moment at which a picture stands in the page,
`first_chart_seconds` until the first one that answers to the mouse does, and `all_pictures_seconds` until all do that a
print would have; in headless Chromium (playwright) at 1280 x 900 pixels. `trouble` counts errors in its console.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

OWN_PARAMETERS = 4
"""Parameters that the made-up trials have beside those of the tests' studies."""


def made_up(trials: int, epochs: int) -> Any:
    """Return a study of so many trials."""
    from tests.support.study_factory import build_study

    rng, study = random.Random(0), build_study(trials, epochs=epochs)
    changed = tuple(
        replace(one, params={**one.params, **{f"extra_{i}": rng.random() for i in range(OWN_PARAMETERS)}})
        for one in study.trials
    )
    return replace(study, trials=changed)


def write(trials: int, epochs: int, out: Path) -> None:
    """Write one page, and print its seconds and bytes as JSON."""
    study = made_up(trials, epochs)
    start, cpu = time.perf_counter(), time.process_time()
    from reports.page import write_report

    write_report(study, out)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    told = {"write_seconds": round(seconds, 2), "write_cpu_seconds": round(cpu, 2)}
    print(json.dumps(told | {"megabytes": round(out.stat().st_size / 1e6, 2)}))


def written(trials: int, epochs: int, out: Path) -> dict[str, Any]:
    """Return what `write` prints in a process of its own."""
    command = [sys.executable, __file__, "--write", str(out), "--trials", str(trials), "--epochs", str(epochs)]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def opened(page: Path, chromium: str) -> dict[str, Any]:
    """Return how soon a browser shows the page's charts."""
    from playwright.sync_api import sync_playwright

    first = "() => document.querySelector('.figure svg')"
    chart = "() => document.querySelector('.figure .main-svg')"
    every = (
        "() => [...document.querySelectorAll('.figure')]"
        ".every(box => box.closest('[hidden]') || box.querySelector('.main-svg'))"
    )
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page(viewport={"width": 1280, "height": 900})
        troubles: list[str] = []
        tab.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
        tab.on("pageerror", lambda error: troubles.append(str(error)))
        start = time.perf_counter()
        tab.goto(page.as_uri(), wait_until="commit")
        tab.wait_for_function(first, timeout=120_000)
        soon = time.perf_counter() - start
        tab.wait_for_function(chart, timeout=120_000)
        charted = time.perf_counter() - start
        tab.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        tab.wait_for_function(every, timeout=120_000)
        late = time.perf_counter() - start
        browser.close()
    seconds = {"first_picture": soon, "first_chart": charted, "all_pictures": late}
    return {f"{name}_seconds": round(one, 2) for name, one in seconds.items()} | {"trouble": len(troubles)}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trials", type=int, nargs="+", default=[60, 1000, 10_000])
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--no-browser", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        write(options.trials[0], options.epochs, options.write)
        return
    chromium = None if options.no_browser else shutil.which("chromium") or shutil.which("google-chrome")
    found: dict[str, Any] = {"load": os.getloadavg()[0], "epochs": options.epochs, "reports": {}}
    with tempfile.TemporaryDirectory() as folder:
        for trials in options.trials:
            page = Path(folder) / f"{trials}.html"
            told = written(trials, options.epochs, page)
            told |= opened(page, chromium) if chromium else {}
            found["reports"][str(trials)] = told
            if not options.json:
                print(f"{trials:6,} trials: " + ", ".join(f"{name} {value}" for name, value in told.items()))
    if options.json:
        print(json.dumps(found | {"load_at_end": os.getloadavg()[0]}))


if __name__ == "__main__":
    main()
