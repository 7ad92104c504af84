"""Serves models until a signal ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from .settings import Settings
from .sources import Source
from .supervisor import Supervisor


def serve(settings: Settings, sources: Mapping[str, Source], say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C; SIGHUP loads the models again.

    Args:
        settings: The settings.
        sources: Where the model of each role, champion and perhaps challenger, comes from.
        say: Prints a line.

    Raises:
        ServeError: The port cannot be had, or a model cannot be served.
    """

    async def run() -> None:
        await Supervisor(settings, sources, say).run()

    asyncio.run(run())
