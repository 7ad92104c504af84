"""A browser for tests and pictures, patient enough for a machine with company."""

from typing import Any

PATIENCE_MS = 120_000.0
_QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run")
_ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", *_QUIET)


class PatientBrowser:
    """A browser whose pages may take two minutes for what they are waited for: half a minute is playwright's own."""

    def __init__(self, driver: Any, chromium: str) -> None:
        from playwright.sync_api import Error

        options: dict[str, Any] = {"executable_path": chromium, "args": _ARGUMENTS, "timeout": PATIENCE_MS}
        try:
            self._browser = driver.chromium.launch(**options)
        except Error:  # on a machine at its limits a browser may crash while it starts
            self._browser = driver.chromium.launch(**options)

    def new_context(self, **options: Any) -> Any:
        """Make a context."""
        context = self._browser.new_context(**options)
        context.set_default_timeout(PATIENCE_MS)
        return context

    def new_page(self, **options: Any) -> Any:
        """Make a page in a context of its own."""
        page = self._browser.new_page(**options)
        page.set_default_timeout(PATIENCE_MS)
        return page

    def close(self) -> None:
        """End the browser."""
        self._browser.close()
