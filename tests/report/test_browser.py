"""The page in a real browser, without a network: `make test-browser`."""

import shutil
import threading
import time

import pytest

from protolith.report.page.build import write_report
from protolith.report.page.watch import Server, Watched

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed (pip install -e '.[dev]')")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="chromium and chromedriver are not installed (make test-browser)"
)
ARGUMENTS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip
METHODS = ("fedavg", "fpl", "i2pfl", "fedcode", "fedapc")
HOSTILE = "<script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\">"
PATIENCE = 90


class Browser:
    """A browser with what the tests ask of it."""

    def __init__(self):
        options = webdriver.ChromeOptions()
        options.binary_location = BROWSER
        for argument in ARGUMENTS:
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
        self.driver.set_script_timeout(PATIENCE)

    def run(self, script, *arguments):
        """Run a script in the page."""
        return self.driver.execute_script(script, *arguments)

    def look(self, width=1200, theme="light"):
        """Choose the window's width and what the system prefers."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def open(self, address):
        """Open a page and wait until its figures are drawn."""
        self.driver.get(address)
        self.wait("return document.documentElement.dataset.ready === 'yes'")

    def wait(self, script, *arguments):
        """Wait until a script says yes."""
        until = time.monotonic() + PATIENCE
        while not self.run(script, *arguments):
            assert time.monotonic() < until, f"waited in vain for: {script}"
            time.sleep(0.1)

    def complaints(self):
        """What the console says."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]


@pytest.fixture(scope="module")
def browser():
    held = Browser()
    yield held
    held.driver.quit()


@pytest.fixture
def report(make_run, tmp_path):
    """A report of five methods and two seeds, as a file."""
    for method in METHODS:
        for seed in (0, 1):
            make_run(f"runs/{method}-{seed}", method, seed)
    return write_report([tmp_path / "runs"], tmp_path / "report.html").as_uri()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_opens_from_disk_and_every_figure_is_drawn(browser, report, theme):
    browser.look(theme=theme)
    browser.open(report)
    empty = browser.run(
        "return [...document.querySelectorAll('.chart')].filter(p => !p.querySelector(arguments[0])).map(p => p.id)",
        ".scatterlayer .trace path, .barlayer .trace path, .heatmaplayer image",
    )
    assert browser.run("return document.querySelectorAll('.chart').length") > 12 and empty == []
    assert browser.complaints() == []
    assert (
        browser.run("return performance.getEntriesByType('resource').filter(e => !e.name.startsWith('data:')).length")
        == 0
    )


def luminance(colour):
    """How light a colour `rgb(r, g, b)` is, by WCAG."""
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_in_both_themes(browser, report, theme):
    browser.look(theme=theme)
    browser.open(report)
    paper = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (luminance(paper) < 0.1) == (theme == "dark")
    for kind in ("p.look", "p.note", "td", "h2", "a", "p.missing", "figcaption", "select"):
        ink, own = browser.run(
            "const e = document.querySelector(arguments[0]), s = getComputedStyle(e);"
            "return [s.color, s.backgroundColor]", kind,
        )  # fmt: skip
        under = paper if own.endswith(", 0)") else own
        light, dark = sorted((luminance(ink), luminance(under)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, kind
    drawn = browser.run("return getComputedStyle(document.querySelector('#s0-rounds .xtick text')).fill")
    assert (luminance(drawn) > 0.5) == (theme == "dark")


def test_the_button_changes_the_theme(browser, report):
    browser.look()
    browser.open(report)
    before = browser.run("return getComputedStyle(document.body).backgroundColor")
    browser.run("document.getElementById('theme').click()")
    browser.wait("return document.documentElement.dataset.ready === 'yes'")
    assert browser.run("return getComputedStyle(document.body).backgroundColor") != before
    line = "return document.querySelector('#s0-rounds').data.find(t => t.name === 'FedCode').line.color"
    assert browser.run(line) == "#F2F2F2"  # black would be swallowed


@pytest.mark.parametrize("width", [400, 800, 1600])
def test_no_width_needs_a_scroll_bar(browser, report, width):
    browser.look(width)
    browser.open(report)
    inside, window = browser.run("return [document.documentElement.scrollWidth, innerWidth]")
    assert inside <= window == width
    wide = browser.run(
        "return [...document.querySelectorAll('.chart')].filter(p => p.getBoundingClientRect().right > innerWidth)"
        ".map(p => p.id)"
    )
    assert wide == []


def test_the_domain_can_be_switched(browser, report):
    browser.look()
    browser.open(report)
    values = "return document.getElementById('s0-rounds').data.find(t => t.name === 'FedAvg').y"
    mean = browser.run(values)
    switch = "const s = document.querySelector('select[data-group=s0-rounds]'); s.value = arguments[0];"
    browser.run(switch + "s.dispatchEvent(new Event('change', {bubbles: true}))", "2")
    browser.wait("return " + values.removeprefix("return ") + "[0] !== arguments[0]", mean[0])
    assert browser.run(values) == [value + 2.5 for value in mean]  # photo is five above pen
    colour = switch.replace("s0-rounds", "s0-space") + "s.dispatchEvent(new Event('change', {bubbles: true}))"
    before = browser.run("return document.getElementById('s0-space-0').data.length")
    browser.run(colour, "1")
    browser.wait("return document.getElementById('s0-space-0').data.length !== arguments[0]", before)
    shown = browser.run("return [...document.querySelectorAll('[data-view][data-group=s0-space]')].map(e => e.hidden)")
    assert shown == [True, False]


def test_a_point_under_the_mouse_shows_its_image(browser, report):
    browser.look()
    browser.open(report)
    place = browser.run(
        "const p = document.querySelector('#s0-space-0'); p.scrollIntoView({block: 'center'});"
        "const b = p.querySelector('.points path').getBoundingClientRect();"
        "return [b.left + b.width / 2, b.top + b.height / 2]"
    )
    time.sleep(0.3)
    for step in (20, 0):
        event = {"type": "mouseMoved", "x": place[0] + step, "y": place[1] + step}
        browser.driver.execute_cdp_cmd("Input.dispatchMouseEvent", event)
    browser.wait("return !document.getElementById('tip').hidden")
    words, address = browser.run(
        "const t = document.getElementById('tip'); return [t.textContent, t.querySelector('img')?.src ?? '']"
    )
    assert any(name in words for name in ("cat", "dog", "owl")) and address.startswith("data:image/webp")
    box = browser.run("const b = document.getElementById('tip').getBoundingClientRect(); return [b.right, b.bottom]")
    assert box[0] <= 1200 and box[1] <= 900


def test_hostile_names_are_shown_and_nothing_of_them_runs(browser, make_run, tmp_path):
    classes, domains = (HOSTILE, "<b>dog</b>", "owl"), (HOSTILE, "photo")
    clients = tuple(f"{HOSTILE}{index}" for index in range(3))
    for method in METHODS:
        make_run(
            f"runs/{method}<script>document.title='broken'<", method, classes=classes, domains=domains, clients=clients
        )
    browser.look()
    browser.open(write_report([tmp_path / "runs"], tmp_path / "report.html").as_uri())
    assert browser.run("return document.title") == "Protolith: runs"
    assert browser.run("return document.querySelectorAll('script:not([src])').length") == 3
    assert browser.run("return [...document.images].every(i => i.src.startsWith('data:'))")
    assert browser.run("return document.querySelectorAll('svg b, svg script, svg img, svg a').length") == 0
    ticks = browser.run("return [...document.querySelectorAll('#s0-classes .xtick text')].map(t => t.textContent)")
    assert "<b>dog</b>" in ticks and "<script>document." in ticks[0]
    assert "<b>dog</b>" in browser.run("return document.querySelector('#fails .gallery').innerText")
    assert browser.complaints() == []


def test_it_prints_light_and_within_the_paper(browser, report):
    browser.look(1600, "dark")
    browser.open(report)
    browser.run("dispatchEvent(new Event('beforeprint'))")
    browser.wait("return document.querySelector('#s0-rounds .main-svg').getBoundingClientRect().width <= 660")
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    browser.run("dispatchEvent(new Event('afterprint'))")
    browser.wait("return document.querySelector('#s0-rounds .main-svg').getBoundingClientRect().width > 660")
    assert browser.run("return getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"


def test_a_watched_page_gains_a_round_without_reload(browser, make_run, metrics_line, tmp_path):
    run = make_run("runs/r", rounds=1, finished=False)
    with Server(Watched([tmp_path / "runs"]), 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser.look()
        browser.open(server.address)
        browser.run("window.notReloaded = true")
        browser.wait("return document.getElementById('live').textContent.includes('1 of 3 rounds')")
        run.append_metrics(metrics_line(1, {"pen": 50.0, "photo": 60.0}))
        browser.wait("return document.getElementById('s0-rounds').data[0].x.length === 2")
        assert browser.run("return document.querySelector('#answer').innerText.includes('round 2 of 3')")
        assert browser.run("return window.notReloaded") and browser.complaints() == []
        server.shutdown()
    browser.wait("return document.getElementById('live').textContent.includes('has ended')")
