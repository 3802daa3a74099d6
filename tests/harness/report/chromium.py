"""Headless Chromium for tests: one browser, which downloads nothing and is asked what it sees."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
)


@contextmanager
def chromium(profile: Path) -> Iterator[Page]:
    """Give a page in a new browser with an empty profile; skips where there is none.

    Naming the driver's path keeps selenium from looking for one to download.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("no Chromium with its driver on this machine (Debian: chromium-driver)")
    options = ChromeOptions()
    options.binary_location = browser
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("no_proxy", "localhost,127.0.0.1")
        chrome = Chrome(options=options, service=Service(executable_path=driver))
        try:
            yield Page(chrome)
        finally:
            chrome.quit()


class Page:
    """One tab of a browser."""

    def __init__(self, chrome: Chrome) -> None:
        self.chrome = chrome

    def open(
        self, path: Path, *, width: int = 1280, scheme: str = "light", scripts: bool = True
    ) -> None:
        """Load a file anew, in a window of this width, in a light or dark scheme."""
        self.chrome.get("about:blank")
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self._do("Emulation.setDeviceMetricsOverride", **size)
        self.show_as("screen", scheme)
        self._do("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.chrome.get_log("performance")
        self.chrome.get_log("browser")
        self.chrome.get(path.as_uri())

    def show_as(self, medium: str, scheme: str = "light") -> None:
        """Show the page as on a medium (screen, print) with a preferred scheme."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._do("Emulation.setEmulatedMedia", media=medium, features=features)

    def js(self, source: str, *arguments: Any) -> Any:
        """Return what a script gives; it runs beside the page, whatever its policy."""
        return self.chrome.execute_script(source, *arguments)

    def press(self, key: str) -> None:
        """Press one key where the focus is, e.g. `Tab` or `Enter`."""
        text = {"text": "\r"} if key == "Enter" else {}
        code = {"Tab": 9, "Enter": 13, "Space": 32}[key]
        name = " " if key == "Space" else key
        common = {"key": name, "code": key, "windowsVirtualKeyCode": code}
        self._do("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        self._do("Input.dispatchKeyEvent", type="keyUp", **common)

    def console(self) -> list[str]:
        """Return what the browser complained of since the page was opened."""
        return [entry["message"] for entry in self.chrome.get_log("browser")]

    def requests(self) -> list[str]:
        """Return the address of everything that was asked for since the page was opened."""
        events = [
            json.loads(entry["message"])["message"] for entry in self.chrome.get_log("performance")
        ]
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def screenshot(self, path: Path) -> bytes:
        """Write the whole page as a PNG and return it."""
        size = self._do("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self._do("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        picture = base64.b64decode(shot["data"])
        path.write_bytes(picture)
        return picture

    def pdf(self) -> bytes:
        """Return the page as it would be printed."""
        printed = self._do(
            "Page.printToPDF", preferCSSPageSize=False, paperWidth=8.27, paperHeight=11.69
        )
        return base64.b64decode(printed["data"])

    def _do(self, command: str, **arguments: Any) -> Any:
        return self.chrome.execute_cdp_cmd(command, arguments)
