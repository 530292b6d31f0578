"""The page in a real browser: headless Chromium by Selenium, which needs nothing but the service."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="needs pip install edgepeft[serve]")
selenium = pytest.importorskip("selenium", reason="needs selenium, chromium and chromedriver")

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

pytestmark = pytest.mark.skipif(not (BROWSER and DRIVER), reason="needs chromium and chromedriver")


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    # Whatever is not on this machine does not resolve: the page must need nothing else.
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def shown(browser, name, wide=1100, high=900, dark=False):
    """Set size and scheme; a picture goes where EDGEPEFT_SCREENSHOTS says."""
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    metrics = {"width": wide, "height": high, "deviceScaleFactor": 1, "mobile": wide < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    if folder := os.environ.get("EDGEPEFT_SCREENSHOTS"):
        browser.save_screenshot(str(Path(folder) / f"{name}.png"))


def wait(browser, condition):
    return WebDriverWait(browser, 20).until(lambda _: condition())


def find(browser, selector):
    return browser.find_elements(By.CSS_SELECTOR, selector)


def of_module(browser, name, script, given):
    """What a script gives with a module of the page, its ``page``."""
    body = (
        f"const [given, done] = arguments; import('/static/{name}.js').then((page) => {{ {script} }}).then(done, done);"
    )
    return browser.execute_async_script(body, given)


def ask(browser, text):
    field = browser.find_element(By.ID, "text")
    field.clear()
    field.send_keys(text)
    browser.find_element(By.ID, "go").click()


def problems(browser):
    return [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def test_a_text_is_answered_by_all_tasks_with_scores_and_latency(browser, served):
    browser.get(f"http://127.0.0.1:{served.port}/")
    wait(browser, lambda: browser.find_element(By.ID, "summary").text == "3 tasks")
    ask(browser, "w5 w6 w7")
    wait(browser, lambda: len(find(browser, ".answer")) == 3)
    _, _, told = served.predict("mood", {"text": "w5 w6 w7"})
    best = max(told["predictions"][0]["scores"].items(), key=lambda item: item[1])
    first = next(card for card in find(browser, ".answer") if card.text.startswith("mood"))
    lines = [line.text for line in first.find_elements(By.CSS_SELECTOR, "li")]
    assert lines[0].split() == [best[0], f"{100 * best[1]:.1f}", "%"]
    number = next(card for card in find(browser, ".answer") if card.text.startswith("score"))
    value = served.predict("score", {"text": "w5 w6 w7"})[2]["predictions"][0]["value"]
    assert float(number.find_element(By.CSS_SELECTOR, ".value").text) == pytest.approx(value, abs=2e-3)
    assert "3 tasks in" in browser.find_element(By.ID, "took").text
    assert problems(browser) == []


def test_what_can_be_asked_stands_there_before_the_first_question(browser, served):
    browser.get(f"http://127.0.0.1:{served.port}/")
    wait(browser, lambda: len(find(browser, "#tasks li")) == 3)
    assert sorted(item.text.split("\n") for item in find(browser, "#tasks li")) == [
        ["mood", "lora · texts: no, yes"],
        ["pair", "houlsby · pairs of texts: a, b, c"],
        ["score", "bitfit · texts: a number"],
    ]


def test_the_chosen_tasks_are_asked_and_stay_chosen(browser, served):
    browser.get(f"http://127.0.0.1:{served.port}/")
    wait(browser, lambda: len(find(browser, "#tasks li")) == 3)
    assert browser.find_element(By.ID, "pair").is_displayed()
    browser.find_element(By.ID, "none").click()
    ask(browser, "w5")
    wait(browser, lambda: browser.find_element(By.ID, "error").text == "choose a task")
    browser.find_element(By.CSS_SELECTOR, "#tasks input[value=score]").click()
    assert not browser.find_element(By.ID, "pair").is_displayed()
    ask(browser, " w6")
    wait(browser, lambda: [card.text.split("\n")[0] for card in find(browser, ".answer")] == ["score"])
    assert [box.get_property("value") for box in find(browser, "#tasks input:checked")] == ["score"]
    assert "1 task in" in browser.find_element(By.ID, "took").text
    assert problems(browser) == []


@pytest.mark.parametrize(
    ("prediction", "lines"),
    [
        ({"label": "a", "scores": {"a": 0.55, "b": 0.45}, "unsure": True}, ["unsure", "a", "55.0 %", "b", "45.0 %"]),
        ({"label": "a", "scores": {"a": 0.55, "b": 0.45}, "unsure": False}, ["a", "55.0 %", "b", "45.0 %"]),
        ({"labels": [], "scores": {"<i>": 0.2}}, ["none of the labels", "<i>", "20.0 %"]),
        ({"labels": ["a", "<i>"], "scores": {"a": 0.9, "<i>": 0.8}}, ["a, <i>", "a", "90.0 %", "<i>", "80.0 %"]),
    ],
)
def test_an_answer_says_what_holds_and_whether_it_is_unsure(browser, served, prediction, lines):
    browser.get(f"http://127.0.0.1:{served.port}/")
    wait(browser, lambda: browser.find_element(By.ID, "summary").text == "3 tasks")
    script = "document.getElementById('answers').replaceChildren(page.answerCard({name: 't', method: 'lora'}, {prediction: given}))"
    of_module(browser, "page", script, {"task": "t", **prediction})
    (card,) = find(browser, ".answer")
    assert [part.strip() for part in card.text.split("\n")] == ["t", "lora", *lines]


def test_a_task_that_picks_is_asked_with_candidates(browser, picking):
    browser.get(f"http://127.0.0.1:{picking.port}/")
    wait(browser, lambda: len(find(browser, "#tasks li")) == 1)
    assert find(browser, "#tasks li")[0].text.endswith("texts: one of their candidates")
    ask(browser, "w5")
    wait(browser, lambda: "the row has no candidate" in browser.find_element(By.ID, "error").text)
    browser.get_log("browser")  # of that answer's status
    browser.find_element(By.CSS_SELECTOR, "#picks summary").click()
    browser.find_element(By.ID, "candidates").send_keys("w6 w7\nw8\n\nw9 w10")
    ask(browser, "w5")
    wait(browser, lambda: len(find(browser, ".answer li")) == 3)
    (told,) = picking.predict("pick", {"text": "w5", "candidates": ["w6 w7", "w8", "w9 w10"]})[2]["predictions"]
    assert find(browser, ".answer li")[0].text.startswith(told["label"])
    assert problems(browser) == []


def test_throughput_and_memory_are_live(browser, served):
    browser.get(f"http://127.0.0.1:{served.port}/")
    wait(browser, lambda: "MiB" in browser.find_element(By.ID, "memory").text)
    before = int(browser.find_element(By.ID, "rows").text.split()[0])
    served.predict("mood", {"rows": ["w5"] * 7})
    wait(browser, lambda: int(browser.find_element(By.ID, "rows").text.split()[0]) >= before + 7)
    assert float(browser.find_element(By.ID, "rate").text.split()[0]) > 0
    assert browser.find_element(By.ID, "curve").get_attribute("points")


@pytest.mark.parametrize(
    ("name", "wide", "dark"), [("light", 1100, False), ("dark", 1100, True), ("phone", 360, False), ("phone-dark", 360, True)]
)  # fmt: skip
def test_it_fits_every_width_and_can_be_read_in_both_schemes(browser, served, name, wide, dark):
    browser.get(f"http://127.0.0.1:{served.port}/")
    shown(browser, name, wide, dark=dark)
    wait(browser, lambda: browser.find_element(By.ID, "summary").text == "3 tasks")
    ask(browser, "w5 " * 30)
    wait(browser, lambda: len(find(browser, ".answer")) == 3)
    shown(browser, name, wide, dark=dark)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= wide
    for selector in ("body", "#go", ".answer li span", "dt"):
        assert contrast(browser, selector) >= 4.5, selector


CONTRAST = """
const element = document.querySelector(arguments[0]);
const channel = (v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
const light = (css) => {
  const [r, g, b] = css.match(/[\\d.]+/g).map(Number);
  return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
};
let under = element;
while (/, 0\\)|transparent/.test(getComputedStyle(under).backgroundColor)) under = under.parentElement;
const [a, b] = [getComputedStyle(element).color, getComputedStyle(under).backgroundColor].map(light).sort((x, y) => y - x);
return (a + 0.05) / (b + 0.05);
"""


def contrast(browser, selector):
    """WCAG 2.1's ratio of the text's colour to what lies under it."""
    return browser.execute_script(CONTRAST, selector)


def test_a_label_is_text_and_never_markup(browser, served):
    browser.get(f"http://127.0.0.1:{served.port}/")
    wait(browser, lambda: browser.find_element(By.ID, "summary").text == "3 tasks")
    name, label = "<img src=x onerror=window.bad=1>", "<script>window.bad=1</script>"
    card = "page.answerCard({name: given.name, method: 'm'}, {prediction: {scores: {[given.label]: 1}}})"
    made = of_module(browser, "page", f"return {card}.innerHTML", {"name": name, "label": label})
    assert "&lt;img" in made and "<img" not in made
    assert "&lt;script" in made and "<script" not in made
    task = {"name": name, "about": label, "checked": True}
    made = of_module(browser, "picker", "page.pick([given], () => {}); return tasks.innerHTML", task)
    assert "&lt;img" in made and "<img" not in made
    assert "&lt;script" in made and "<script" not in made


def test_the_documentation_shows_every_operation_and_tries_one(browser, served):
    browser.get(f"http://127.0.0.1:{served.port}/docs")
    shown(browser, "docs")
    wait(browser, lambda: len(find(browser, ".operation")) >= 10)
    card = next(each for each in find(browser, ".operation") if "/v1/tasks/{task}:predict" in each.text)
    card.find_element(By.TAG_NAME, "summary").click()
    card.find_element(By.TAG_NAME, "input").send_keys("mood")
    shown(browser, "docs-open")
    card.find_element(By.TAG_NAME, "button").click()
    wait(browser, lambda: '"predictions"' in card.text.split("Try it")[-1])
    assert problems(browser) == []


OVERLAPPING = """
const boxes = [...document.querySelectorAll("h1, #summary, header > a, .operation .method, .operation code, .operation label, textarea, pre, button")]
  .filter((each) => each.checkVisibility()).map((each) => [each.outerHTML.slice(0, 60), each.getBoundingClientRect()]);
return boxes.flatMap(([one, a], i) => boxes.slice(i + 1)
  .filter(([, b]) => a.left < b.right + 4 && b.left < a.right + 4 && a.top < b.bottom && b.top < a.bottom)
  .map(([other]) => [one, other]));
"""


@pytest.mark.parametrize("wide", [1280, 390])
def test_nothing_of_the_documentation_covers_anything_else(browser, served, wide):
    """Closed and open; four pixels lie between what stands in one line."""
    browser.get(f"http://127.0.0.1:{served.port}/docs")
    shown(browser, f"docs-{wide}", wide)
    wait(browser, lambda: len(find(browser, ".operation")) >= 10)
    assert browser.execute_script(OVERLAPPING) == []
    browser.execute_script("document.querySelectorAll('details').forEach((each) => { each.open = true; });")
    shown(browser, f"docs-{wide}-open", wide, 3000)
    assert browser.execute_script(OVERLAPPING) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= wide


def test_a_token_is_asked_for_once(browser, exported, tmp_path):
    from served import serving

    (tmp_path / "token").write_text("0123456789abcdef0123")
    with serving(exported, tmp_path, "--no-cache", "--token-file", tmp_path / "token") as own:
        browser.get(f"http://127.0.0.1:{own.port}/")
        wait(browser, lambda: browser.find_element(By.ID, "token-form").is_displayed())
        shown(browser, "token")
        browser.find_element(By.ID, "token").send_keys("0123456789abcdef0123")
        browser.find_element(By.CSS_SELECTOR, "#token-form button").click()
        wait(browser, lambda: browser.find_element(By.ID, "summary").text == "3 tasks")
        assert not browser.find_element(By.ID, "token-form").is_displayed()


def test_spans_are_marked_by_characters_not_by_halves_of_them(browser, served):
    browser.get(f"http://127.0.0.1:{served.port}/")
    spans = [{"start": 2, "end": 4, "label": "PER", "score": 0.5}, {"start": 5, "end": 6, "label": "<b>", "score": 0.5}]
    found = of_module(browser, "answers", "return page.marked('😀 w5 𝛽', given).innerHTML", spans)
    mark = '<mark title="{} 50.0 %">{}<b>{}</b></mark>'
    found = found.replace('title="&lt;b&gt;', 'title="<b>')  # newer Chromium writes attributes so
    assert found == "😀 " + mark.format("PER", "w5", "PER") + " " + mark.format("<b>", "𝛽", "&lt;b&gt;")
