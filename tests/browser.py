"""A real browser for the tests of pages, where this machine has one."""

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

_BROWSER, _DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
_FLAGS = (
    "headless",
    "no-sandbox",
    "disable-gpu",
    "disable-dev-shm-usage",
    "disable-quic",
    "no-first-run",
    "disable-background-networking",
    "disable-component-update",
    "disable-sync",
    "window-size=1280,1400",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium with a profile of its own, which writes down messages and requests of pages."""
    if _BROWSER is None or _DRIVER is None:
        pytest.skip("there is no chromium with chromedriver on this machine")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = _BROWSER
    for flag in (*_FLAGS, f"user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(_DRIVER))
    yield driver
    driver.quit()
    driver.service.stop()


def addresses(browser: Any) -> list[str]:
    """Addresses that pages have asked for since this was asked last."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [each for each in messages if each["method"] == "Network.requestWillBeSent"]
    return [each["params"]["request"]["url"] for each in sent]


def complaints(browser: Any) -> list[str]:
    """What of the page that is open is in the way of people with disabilities."""
    return browser.execute_script(_ACCESSIBILITY)


# Contrast is that of WCAG 2.2, success criterion 1.4.3, for text of any size.
_ACCESSIBILITY = r"""
const found = [], all = (selector) => document.querySelectorAll(selector);
const name = (one) => one.getAttribute("aria-label")
  || [...(one.labels ?? [])].map((label) => label.textContent).join("")
  || (["A", "BUTTON"].includes(one.tagName) ? one.textContent : "");
for (const one of all("input, select, textarea, button, a")) {
  if (!name(one).trim()) found.push(`no name: ${one.outerHTML}`);
}
if (!document.documentElement.lang) found.push("no language");
if (!document.title) found.push("no title");
if (all("h1").length !== 1 || all("main").length !== 1) found.push("not one h1, or not one main");
const ids = [...all("[id]")].map((one) => one.id);
if (new Set(ids).size !== ids.length) found.push("an id is there twice");
for (const kind of ["aria-describedby", "aria-labelledby"]) {
  for (const one of all(`[${kind}]`)) {
    for (const id of one.getAttribute(kind).split(" ")) {
      if (!document.getElementById(id)) found.push(`nothing has the id ${id}`);
    }
  }
}
const numbers = (color) => color.match(/[\d.]+/g).map(Number);
const linear = (x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
const luminance = (color) => numbers(color).slice(0, 3)
  .reduce((sum, x, i) => sum + linear(x / 255) * [0.2126, 0.7152, 0.0722][i], 0);
function background(one) {
  const color = getComputedStyle(one).backgroundColor;
  return numbers(color)[3] === 0 && one.parentElement ? background(one.parentElement) : color;
}
function compare(one, color) {
  const [low, high] = [color, background(one)].map(luminance).sort((a, b) => a - b);
  const contrast = (high + 0.05) / (low + 0.05);
  if (contrast < 4.5) found.push(`contrast of ${contrast.toFixed(2)}: ${one.outerHTML}`);
}
for (const one of all("body *")) {
  const has = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  const isShown = one.checkVisibility() && !one.closest("[aria-hidden]");
  if (has && isShown) compare(one, getComputedStyle(one).color);
}
for (const one of all("textarea")) {
  compare(one, getComputedStyle(one).color);
  compare(one, getComputedStyle(one, "::placeholder").color);
  for (const word of one.parentElement.querySelectorAll(".word")) {
    compare(word, getComputedStyle(one).color); // it lies behind the text area
  }
}
return found;
"""
