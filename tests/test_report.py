"""One page about runs: what is in it, that nothing in it becomes markup, and how it looks and behaves in a browser."""

import html.parser
import json

import numpy as np
import pytest

import kemeny
from kemeny.errors import UserError
from kemeny.experiments.curves import open_runs
from kemeny.experiments.quantities import MOST_POINTS
from kemeny.experiments.report import strip
from kemeny.experiments.report.contents import choose, contents
from tests import browser
from tests.fake_runs import fake_run

HOSTILE = "<img src=x onerror='hacked=1'>&amp;\u2028--><svg onload=hacked=1>"
SCRIPT = "</script><script>hacked=1</script></script ><script >hacked=1</script ><!--<script >" + HOSTILE
"""As a directory cannot be called, for its slash."""


def data_of(runs, **strips):
    return contents(choose(open_runs([run.path for run in runs])), strips)


class Tags(html.parser.HTMLParser):
    """The tags of a page, and the text of its data."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.data = [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.tags and self.tags[-1] == ("script", {"type": "application/json", "id": "data"}):
            self.data += data


def hostile_run(path, **changes):
    run = fake_run(path, [1.0, 4.0, 2.0], env=SCRIPT, rates=[0.1, 0.2, 0.4], **changes)
    config = json.loads((path / "config.json").read_text())
    config |= {"env_kwargs": {SCRIPT: SCRIPT}, "git_commit": SCRIPT, "versions": {SCRIPT: SCRIPT}}
    (path / "config.json").write_text(json.dumps(config))
    return run


@pytest.fixture
def page(tmp_path):
    """A page of two tasks, with a cost and its limit, and names that would like to be markup."""
    limited = {"algorithm": "acpo", "cost": ["speed"], "limit": [2.0]}
    runs = [
        hostile_run(tmp_path / HOSTILE),
        fake_run(tmp_path / "0", [1.0, 2.0, 3.0], costs=[1.5], **limited),
        fake_run(tmp_path / "1", [2.0, 5.0, 3.0], costs=[2.9], seed=1, **limited),
        fake_run(tmp_path / "2", [0.0, 1.0, 1.0], rates=[1, 2, 3]),
    ]
    return kemeny.report([run.path for run in runs], tmp_path / "deep" / "report.html", films=False)


def test_nothing_that_a_run_says_becomes_markup(page):
    found = Tags(page.read_text())
    assert [tag for tag, _ in found.tags].count("script") == 2
    assert not {"img", "svg"} & {tag for tag, _ in found.tags}
    assert not [value for _, attrs in found.tags for name, value in attrs.items() if name in ("src", "href")]
    data = json.loads(found.data)
    assert SCRIPT in data["tasks"]
    assert HOSTILE in [run["name"] for run in data["runs"]]


def test_runs_without_an_evaluation_get_a_sentence(tmp_path):
    waiting = [fake_run(tmp_path / name, []) for name in ("a", "b")]
    with pytest.raises(UserError, match=r"^None of these 2 runs has an evaluation yet, so there is nothing to report"):
        kemeny.report(waiting, tmp_path / "report.html")
    with pytest.raises(UserError, match=r"^The run a has no evaluation yet"):
        kemeny.report(waiting[:1], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
    evaluated = fake_run(tmp_path / "c", [1.0])
    data = data_of([*waiting, evaluated])
    assert [run["name"] for run in data["runs"]] == ["c"]
    assert data["notes"] == ["Not shown, because there is no evaluation yet: a, b."]


def test_a_page_that_cannot_be_written_gets_a_sentence(tmp_path):
    with pytest.raises(UserError, match="cannot be written"):  # and nothing is filmed before
        kemeny.report(fake_run(tmp_path / "a", [1.0]), tmp_path, progress=pytest.fail)


def test_long_curves_are_thinned_out(tmp_path):
    runs = [fake_run(tmp_path / str(seed), range(2_000), rates=range(4_000), seed=seed) for seed in (0, 1)]
    data = data_of(runs)
    (curve,) = data["curves"]
    for line in [*curve["lines"].values(), *data["runs"][1]["lines"].values()]:
        assert MOST_POINTS / 2 <= len(line["values"]) <= MOST_POINTS
    assert curve["lines"][0]["values"][0] == np.mean(range(10))


def test_numbers_that_are_none_are_left_out(tmp_path):
    run = fake_run(tmp_path / "a", [1.0], rates=[1.0, float("nan"), float("inf"), 2.0], steps=1_000, batch_size=50)
    assert data_of([run])["runs"][0]["lines"][1]["values"] == [1, 2]


def test_what_a_report_shows(tmp_path):
    runs = [
        fake_run(tmp_path / "a", [1.0, 2.0], costs=[2.5], cost=["speed"], limit=[2.0], algorithm="acpo", steps=900),
        fake_run(tmp_path / "b", [1.0, 3.0], steps=500),
        fake_run(tmp_path / "c", [1.0, 7.0], steps=900),
        fake_run(tmp_path / "d", [1.0, 9.0], steps=900, seed=1),
    ]
    data = data_of(runs)
    assert data["entries"] == [
        {"name": "ACPO, speed ≤ 2, steps 900", "colour": 0, "dash": 0},
        {"name": "ATRPO, steps 500", "colour": 1, "dash": 0},
        {"name": "ATRPO, steps 900", "colour": 1, "dash": 1},
    ]
    assert data["curves"][2]["lines"][0]["values"] == [1, 8]
    assert data["settings"]["columns"] == ["algorithm", "steps", "seed", "cost", "limit"]
    assert [row["cells"][2] for row in data["settings"]["rows"]] == ["0", "0", "0, 1"]
    (table,) = data["summary"]
    cells = {label: [row["cells"][i] for row in table["rows"]] for i, label in enumerate(table["columns"])}
    assert [cell["text"] for cell in cells["return, at most 1,000 steps"]] == ["2.000", "3.000", "8.000"]
    assert cells["speed per step, mean action"][0] == {"text": "2.500", "small": "limit 2 broken", "kind": "broken"}
    assert [data["quantities"][one["quantity"]]["label"] for one in data["limits"]] == ["speed per step, mean action"]


def test_a_run_that_cannot_be_filmed_says_why(tmp_path):
    assert strip.film_strip(fake_run(tmp_path / "a", [1.0])).problem.startswith("No film: ")


def test_a_film_strip_is_small():
    noise = np.random.default_rng(0).integers(0, 256, (strip.PICTURES, 300, 400, 3), np.uint8)
    pictures = strip._small(list(noise))
    assert len(pictures) == strip.PICTURES
    assert all(picture.startswith("data:image/jpeg;base64,") for picture in pictures)
    assert sum(map(len, pictures)) < 300_000


@pytest.mark.skipif(browser.program() is None, reason="looking at the page needs Chromium: on Debian, install chromium")
def test_the_page_in_a_browser(page, tmp_path):
    with browser.browser(tmp_path / "profile") as seen:
        for width in (1280, 390):
            seen.open(page, width, dark=width == 390)
            assert seen.run("innerWidth") == width
            assert seen.run("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
            seen.picture(tmp_path / f"{width}.png")
            assert (tmp_path / f"{width}.png").stat().st_size > 20_000
            _use(seen)
        assert seen.requests == [page.resolve().as_uri()] * 2
        assert seen.complaints == []
        assert seen.run("'hacked' in window") is False


def _use(page):
    """Toggle a curve, read values by mouse and by keyboard, zoom, choose another quantity, as a person would."""
    drawn = "document.querySelectorAll('#curves path.line').length"
    assert page.run(drawn) == 5  # two seeds and their mean, and two single runs
    toggle = "document.querySelector('.legend button').click()"
    page.run(toggle)
    assert page.run(drawn) < 5
    page.run(toggle)
    assert page.run(drawn) == 5
    host = "document.querySelector('#curves .canvas')"
    page.run(f"{host}.scrollIntoView({{behavior: 'instant'}})")
    box = page.run(f"{host}.getBoundingClientRect().toJSON()")
    left, top, width, height = (box[name] for name in ("left", "top", "width", "height"))
    tip, zoomed = "document.querySelector('#curves .tip')", "!document.querySelector('#curves .chart button').hidden"
    page.mouse("Moved", left + width * 0.6, top + height / 2)
    assert "200 steps" in page.run(f"{tip}.textContent")
    assert page.run(f"{tip}.getBoundingClientRect().right <= innerWidth")
    page.mouse("Pressed", left + width * 0.4, top + height / 2)
    page.mouse("Moved", left + width * 0.8, top + height / 2)
    page.mouse("Released", left + width * 0.8, top + height / 2)
    assert page.run(zoomed)
    page.run(f"{host}.focus()")
    page.key("0")
    assert not page.run(zoomed)
    page.key("ArrowRight")
    assert "100 steps" in page.run(f"{tip}.textContent")
    page.run("quantity.value = 1; quantity.dispatchEvent(new Event('change'))")
    assert (
        page.run("document.querySelector('#curves figcaption .quiet').textContent") == "ρ̂, reward per step in training"
    )
