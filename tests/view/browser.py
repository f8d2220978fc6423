"""A real browser for tests and for `make screenshots`: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NAMES = ("chromium", "chromium-browser", "google-chrome")


def trouble() -> str:
    """Why there is no browser here; empty if there is one."""
    if importlib.util.find_spec("playwright") is None:
        return "Playwright is not installed: pip install playwright"
    return "" if _program() else "there is no Chromium on this machine: apt-get install chromium"


def _program() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """One that is closed at the end."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=_program(), args=FLAGS)
        yield started
        started.close()


class Watched:
    """A page whose errors are collected, and that may ask nobody but the server of the test."""

    def __init__(self, opened: Any, width: int, height: int, theme: str, allowed: str = "") -> None:
        self.context = opened.new_context(
            viewport={"width": width, "height": height}, color_scheme=theme, accept_downloads=True
        )
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.elsewhere: list[str] = []
        self.page.on("console", lambda message: message.type == "error" and self.errors.append(message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self._asked(request.url, allowed))

    def _asked(self, url: str, allowed: str) -> None:
        if not url.startswith(("file:", "data:", "blob:")) and not (allowed and url.startswith(allowed)):
            self.elsewhere.append(url)


needs_browser = pytest.mark.skipif(bool(trouble()), reason=trouble() or "there is a browser")
