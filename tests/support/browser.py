"""A headless Chromium. ``python -m tests.support.browser`` prints its path, or fails without one."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

# Debian's name, and those of other packages
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)


@cache
def browser_path() -> str:
    """An installed Chromium, otherwise the one that playwright has downloaded."""
    for name in NAMES:
        if path := shutil.which(name):
            return path
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    if not Path(own).exists():
        pytest.fail("Chromium is not installed: `make browser` installs it or says what to do")
    return own


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window."""
    path = browser_path()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


if __name__ == "__main__":
    print(f"browser: {browser_path()}")
