from pathlib import Path

import pytest

from reports.page import write_report
from tests.reports.conftest import CHROMIUM
from tests.support import optional, screenshots
from tests.support.study_factory import build_study


@pytest.mark.large
def test_the_pictures_of_the_documents_are_made_from_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if CHROMIUM is None:
        optional.missing("Chromium", "apt-get install chromium")
    optional.module("playwright.sync_api")
    monkeypatch.setattr(screenshots, "MOST_BYTES", 60_000)
    written = screenshots.photograph(
        write_report(build_study(12), tmp_path / "report.html"), tmp_path / "out", CHROMIUM
    )
    assert sorted(one.name for one in written) == sorted(screenshots.PARTS), "each part is there under its name"
    assert {one.name for one in screenshots.IMAGES.glob("*.png")} >= set(screenshots.PARTS)
    for picture in written:
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.stat().st_size < 200_000
