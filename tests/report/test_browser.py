"""The page in a browser: it loads without errors, its charts are drawn, its chooser chooses."""

import itertools
import json
import os
import re
import shutil
import subprocess
from html import escape, unescape

import numpy as np
import pandas as pd
import pytest

import quernel
from quernel import TabularQuantileRegressor
from quernel.report.formatting import format_number, format_numbers
from support.report_page import made

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
    *("--enable-logging=stderr", "--virtual-time-budget=2000"),
)

pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="no Chromium here: install the package chromium to test the page"
)

# Put at the end of a copy of the page: looks at it, uses the chooser, looks again, and leaves what it saw in the page.
LOOK = """
<script>
const drawn = () => [...document.querySelectorAll("svg")].map((svg) => {
  const box = svg.getBoundingClientRect(), path = svg.querySelector("path.band, path.bar");
  return {wide: box.width, high: box.height, ink: path ? path.getBBox().width : 0,
          filled: path ? getComputedStyle(path).fill : "none"};
});
const fans = () => [...document.querySelectorAll(".fans figure")].map((one) => one.offsetParent !== null);
const seen = {width: innerWidth, reach: document.documentElement.scrollWidth, charts: drawn(), before: fans()};
const chooser = document.getElementById("column");
chooser.focus();
seen.focused = document.activeElement === chooser;
seen.labelled = chooser.labels.length;
chooser.selectedIndex = 2;
chooser.dispatchEvent(new Event("change"));
seen.after = fans();
const folded = () => [...document.querySelectorAll("details")].map((one) => one.open);
seen.folds = [folded()];
for (const event of ["beforeprint", "afterprint"]) {
  window.dispatchEvent(new Event(event));
  seen.folds.push(folded());
}
const fan = document.querySelectorAll(".fans svg")[2], box = fan.getBoundingClientRect();
const note = document.getElementById("values"), [at, text] = JSON.parse(fan.dataset.values).pop();
const clientX = box.left + at * box.width / fan.viewBox.baseVal.width;
fan.dispatchEvent(new PointerEvent("pointermove", {clientX, clientY: box.top + 50}));
seen.hovered = [note.textContent, text, note.offsetWidth > 20 && note.getBoundingClientRect().right <= innerWidth];
fan.dispatchEvent(new PointerEvent("pointerleave"));
seen.hovered.push(note.offsetWidth);
seen.background = getComputedStyle(document.body).backgroundColor;
parent.document.body.dataset.seen = JSON.stringify(seen);
</script></body>"""


def opened(folder, page, *options, address=""):
    """The page's document after its script ran, and what the console said."""
    path = folder / "page.html"
    path.write_text(page, encoding="utf-8")
    command = [BROWSER, *QUIET, f"--user-data-dir={folder / 'profile'}", *options, "--dump-dom"]
    environment = os.environ | {"HOME": str(folder)}
    ran = subprocess.run(
        [*command, f"file://{path}{address}"], capture_output=True, text=True, timeout=120, env=environment
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout, [line for line in ran.stderr.splitlines() if "CONSOLE" in line]


def looked_at(folder, width):
    """The page in a frame of this width: the windows of some browsers are never as narrow as a phone."""
    page = escape(made()[-1].replace("</body>", LOOK))
    frame = f'<!doctype html><body><iframe srcdoc="{page}" style="width: {width}px; height: 900px; border: 0">'
    document, errors = opened(folder, frame, "--window-size=1400,1000")
    assert errors == []
    (seen,) = re.findall(r'<body data-seen="([^"]*)"', document)
    return json.loads(unescape(seen))


def shown(document):
    """Which fans the document does not hide."""
    figures = re.findall(r'<figure id="fan-(\d+)"([^>]*)>', document)
    return [int(k) for k, attributes in figures if "hidden" not in attributes]


def test_the_page_loads_without_errors_and_the_address_chooses_a_chart(tmp_path):
    document, errors = opened(tmp_path, made()[-1], address="#column=1")
    assert errors == []
    assert shown(document) == [1]


def test_errors_would_be_seen(tmp_path):
    _, errors = opened(tmp_path, made()[-1].replace("</body>", "<script>nothing.here()</script></body>"))
    assert any("nothing is not defined" in line for line in errors)


@pytest.mark.parametrize("width", [1280, 390])
def test_charts_are_drawn_and_the_chooser_changes_the_chart(tmp_path, width):
    seen = looked_at(tmp_path, width)
    assert seen["width"] == width
    assert seen["reach"] <= width  # nothing but tables is wider than the window
    assert seen["before"] == [k == 0 for k in range(8)]
    assert seen["after"] == [k == 2 for k in range(8)]
    assert seen["focused"]
    assert seen["labelled"] == 1
    assert [set(folds) for folds in seen["folds"]] == [{False}, {True}, {False}]  # open on paper only
    text, expected, inside, width_after = seen["hovered"]
    assert text == expected
    assert "median" in text
    assert inside
    assert width_after == 0
    visible = [chart for chart in seen["charts"] if chart["wide"] > 0]
    assert len(visible) == 2  # histogram, one fan
    for chart in visible:
        assert chart["wide"] > 250
        assert chart["ink"] > 10 or chart["high"] > 150
        assert chart["filled"] != "none"


# Moves both inputs of the what-if panel over all points, and leaves what the panel shows at each.
MOVE = """
<script>
const inputs = [...document.querySelectorAll("#what-if input, #what-if select")], [first, second] = inputs, found = [];
const last = (one) => one.options ? one.options.length - 1 : Number(one.max);
const shown = (one) => one.options ? one.options[one.selectedIndex].text : one.nextElementSibling.textContent;
const start = inputs.map((one) => Number(one.value));
for (let i = 0; i <= last(first); i++) for (let j = 0; j <= last(second); j++) {
  first.value = i; second.value = j;
  first.dispatchEvent(new Event("input"));
  found.push([inputs.map(shown),
              [...document.querySelectorAll("#what-if > .beside > table td")].map((one) => one.textContent),
              document.querySelector("#what-if .near").textContent]);
}
const panel = document.getElementById("what-if");
document.body.dataset.found = JSON.stringify([panel.hidden, JSON.parse(panel.dataset.numbers), found, start]);
</script></body>"""


def moved(folder, page):
    """What the page's what-if panel stores, its inputs' values at each point, what it shows there, and its start."""
    document, errors = opened(folder, page.replace("</body>", MOVE))
    assert errors == []
    hidden, numbers, found, start = json.loads(unescape(re.findall(r'data-found="([^"]*)"', document)[0]))
    assert not hidden
    names = re.findall(r'<label for="if-\d">(.*?)</label>', page)
    assert len(names) == 2
    points = [dict(zip(names, pair, strict=True)) for pair in itertools.product(*numbers["values"])]
    return numbers, points, found, start


def test_the_numbers_of_the_what_if_panel_are_predictions_at_its_points(tmp_path):
    """The panel's own inputs, sent to `predict` of the model it names: what it shows is the same, to all digits."""
    table, _, _, evaluation, page = made()
    model = evaluation.model
    assert "This is the evaluated model, not fitted to this row" in page
    numbers, points, found, start = moved(tmp_path, page)
    names = list(points[0])
    expected = model.predict(pd.DataFrame([numbers["row"] | point for point in points]))
    assert len(found) == len(points) > 20
    assert np.ptp(expected) > 0.3 * np.std(evaluation.y)
    for (labels, curve, near), point, quantiles in zip(found, points, expected, strict=True):
        assert curve == [format_number(value) for value in quantiles[::-1]]
        assert near.startswith("No row") == near.endswith("do not rely on this prediction.")
        for label, value in zip(labels, point.values(), strict=True):
            assert label == (format_number(value) if isinstance(value, float) else str(value).lower())
    assert found[0][1] != found[-1][1]  # so that the lines above can fail
    # The row is one of the data, and the inputs start at its own values.
    (rows,) = [sum(all(row[name] == value or name == "sold" for name, value in numbers["row"].items())
                   for row in table.to_pylist())]  # fmt: skip
    assert rows == 1
    own = [values[k] for values, k in zip(numbers["values"], start, strict=True)]
    assert own == [numbers["row"][name] for name in names]


def test_the_what_if_panel_predicts_at_categories_and_dates(tmp_path):
    rng = np.random.default_rng(0)
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, 400), unit="D")
    frame = pd.DataFrame({"place": rng.choice(["north", "south", "east"], 400), "day": days, "x": rng.random(400)})
    y = 100 * (frame["place"] == "north") + days.day_of_year + 10 * rng.standard_normal(400)
    model = TabularQuantileRegressor([0.1, 0.5, 0.9], n_trees=20, random_state=0).fit(frame[:300], y[:300])
    page = quernel.make_report(model, frame[300:], y[300:])
    numbers, points, found, _ = moved(tmp_path, page)
    kinds = dict(re.findall(r'<label for="if-\d">(\w+)</label> <(\w+)', page))
    assert kinds == {"place": "select", "day": "input"}  # categories have no order for a slider
    assert set(points[0]) == {"place", "day"}
    assert len({point["place"] for point in points}) == 3
    expected = model.predict(pd.DataFrame([numbers["row"] | point for point in points]))
    assert np.ptp(expected[:, 1]) > 200
    assert [curve for _, curve, _ in found] == [list(format_numbers(quantiles))[::-1] for quantiles in expected]
    for (labels, _, _), point in zip(found, points, strict=True):
        shown = dict(zip(point, labels, strict=True))
        assert (shown["place"], pd.Timestamp(shown["day"])) == (point["place"], pd.Timestamp(point["day"]))
