"""Pictures of the documents, from a real study; `make screenshots` makes them anew.

    python -m tests.support.screenshots [--study FILE] [--report FILE] [--out FOLDER]

Launches the demo in a temporary folder, with a store of its own, and photographs parts of its report.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.support.browsing import PatientBrowser
from tests.support.paths import EXAMPLES, ROOT

IMAGES = ROOT / "docs" / "images"
MOST_BYTES = 300_000
"""Most bytes of a picture in the repository; one that has more gets fewer colours."""
COLOURS = 128
WIDTH = 1180
PARTS = {
    "report.png": ("header", "#archive"),
    "curves.png": ("#curves-0", "#curves-0"),
    "timeline.png": ("#timeline", "#timeline"),
}
"""By the picture's name the first and the last element of the page that it shows."""


def launched(spec: Path, folder: Path) -> Path:
    """Run a study in a folder; return its report."""
    copy = Path(shutil.copy(spec, folder))
    variables = {**os.environ, "AUTOML_STORE": f"sqlite:///{folder / 'automl.db'}"}
    command = [sys.executable, "-m", "automl", "launch", copy.name]
    subprocess.run(command, cwd=folder, env=variables, check=True, stdout=subprocess.DEVNULL)
    return next(folder.glob("artifacts/*/report.html"))


def photograph(report: Path, out: Path, chromium: str) -> list[Path]:
    """Write the pictures of a report; return their files."""
    from playwright.sync_api import sync_playwright

    out.mkdir(parents=True, exist_ok=True)
    written = []
    with sync_playwright() as driver:
        browser = PatientBrowser(driver, chromium)
        page = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme="light")
        page.goto(report.as_uri())
        page.wait_for_function("() => document.querySelector('.figure .main-svg')")
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")  # draws every chart
        for name, (first, last) in PARTS.items():
            if page.locator(first).count() and page.locator(last).count():
                clip = _between(page, first, last)
                page.screenshot(path=out / name, full_page=True, clip=clip)
                _shrink(out / name)
                written.append(out / name)
        browser.close()
    return written


def _between(page: Any, first: str, last: str) -> dict[str, float]:
    """The part of the page from the beginning of one element to the end of another one, as wide as the page."""
    top = page.locator(first).evaluate("one => one.getBoundingClientRect().top + scrollY")
    end = page.locator(last).evaluate("one => one.getBoundingClientRect().bottom + scrollY")
    return {"x": 0, "y": top, "width": WIDTH, "height": end - top}


def _shrink(picture: Path) -> None:
    if picture.stat().st_size >= MOST_BYTES:
        from PIL import Image

        Image.open(picture).convert("RGB").quantize(COLOURS).save(picture, optimize=True)


def main() -> None:
    """Make the pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--study", type=Path, default=EXAMPLES / "digits.yaml", help="spec that is launched")
    parser.add_argument("--report", type=Path, help="a report that is there already; nothing is launched then")
    parser.add_argument("--out", type=Path, default=IMAGES)
    options = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("screenshots: no Chromium here; apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        report = options.report.resolve() if options.report else launched(options.study, Path(folder))
        for picture in photograph(report, options.out, chromium):
            print(f"{picture}: {picture.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
