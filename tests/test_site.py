"""The pages of the documentation site: their snippets run, their links lead somewhere, and each has its place."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

import quernel
from support.pages import printed_as_shown

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {page.stem: page.read_text() for page in DOCS.glob("*.md")}
LINK = re.compile(r"(?<!`)\]\(([^)\s]+)\)")


RUN_HERE = {"levels": 3, "intervals": 4, "trust": 10, "speed": 3, "tabular": 9, "features": 1}
RUN_IN_TEST_DOCS = {
    "bands", "coverage", "forecasting", "kernel", "losses", "noncrossing", "plots", "scale", "shapes", "shipping",
    "tables", "tails", "theory", "tuning",
}  # fmt: skip


@pytest.mark.parametrize("name", RUN_HERE)
def test_the_examples_print_what_the_page_shows(name, capsys):
    assert printed_as_shown(PAGES[name], capsys) == RUN_HERE[name]


def test_no_page_has_an_example_that_is_not_run():
    with_code = {name for name, page in PAGES.items() if re.search(r"^```py", page, re.M)}
    assert with_code - {"index", "getting_started", "coming_from"} == set(RUN_HERE) | RUN_IN_TEST_DOCS
    tests = (Path(__file__).parent / "test_docs.py").read_text()
    assert [name for name in RUN_IN_TEST_DOCS if f'"{name}.md"' not in tests] == []


def test_the_start_page_has_the_example_of_the_readme():
    snippet = re.search(r"```python\n.*?```", PAGES["index"], re.S)[0]
    assert snippet in (DOCS.parent / "README.md").read_text()  # which tests/test_docs.py runs


def test_getting_started_runs_and_prints_what_it_shows(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert printed_as_shown(PAGES["getting_started"], capsys) == 12
    assert (tmp_path / "fan.png").exists()


SECTIONS = re.split(r"^## ", PAGES["coming_from"], flags=re.M)[1:]


@pytest.mark.parametrize("section", SECTIONS, ids=[one.splitlines()[0] for one in SECTIONS])
def test_the_snippets_beside_other_libraries_run(section, capsys):
    """Ours always, that of another library where it is installed; all of a section print what the page shows."""
    names, missing = {}, []
    beginning = PAGES["coming_from"].partition("\n## ")[0]
    for snippet in re.findall(r"```python\n(.*?)```", beginning + section, re.S):
        try:
            exec(compile(snippet, "coming_from.md", "exec"), names)
        except ModuleNotFoundError as error:
            missing.append(error.name)
    assert capsys.readouterr().out == "".join(re.findall(r"```text\n(.*?)```", section, re.S))
    assert set(missing) <= {"lightgbm", "catboost", "quantile_forest", "statsmodels", "mapie"}
    assert len(re.findall(r"^\*quernel\*\n```python\nfrom quernel import", section, re.M)) == 1


def test_every_library_of_the_start_page_has_its_code_beside_ours():
    named = ["LightGBM", "CatBoost", "quantile-forest", "scikit-learn", "statsmodels", "R", "MAPIE"]
    shown = re.findall(r"^\*([\w -]+)\*\n```", PAGES["coming_from"], re.M)
    assert [name for name in dict.fromkeys(shown) if name != "quernel"] == named
    assert [title.splitlines()[0] for title in SECTIONS if title.startswith("scikit")] == [
        "scikit-learn: QuantileRegressor", "scikit-learn: GradientBoostingRegressor",
    ]  # fmt: skip


def column_of(heading, name):
    """Numbers in a column of the first table below a heading of the page of accuracy."""
    table = re.search(rf"^{heading}.*?(?=^\|)(.*?)(?=^$)", PAGES["accuracy"], re.M | re.S)[1].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    place = cells[0].index(name)
    return [float(row[place].strip("%")) for row in cells[2:]]


def test_what_the_pages_say_of_lightgbm_is_in_the_tables():
    text = " ".join(PAGES["coming_from"].split())
    ours = column_of("## Loss", "tabular")
    assert all(a < b for a, b in zip(ours, column_of("## Loss", "LightGBM tuned"), strict=True))
    plain, tuned = (column_of("Share inside the 80 %", name) for name in ("LightGBM", "LightGBM tuned"))
    assert (
        f"those of LightGBM hold {min(plain):.0f} to {max(plain):.0f} %, tuned {min(tuned):.0f} to {max(tuned):.0f} %"
        in text
    )


def test_the_page_of_accuracy_shows_what_was_measured(tmp_path):
    pytest.importorskip("matplotlib")
    from benchmarks.tables import RESULTS, read_results, render_page

    assert render_page(read_results(RESULTS), tmp_path) == PAGES["accuracy"]


def anchors(page):
    """Headings of a page as a code host and MyST name them in links."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page, flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", sorted(PAGES))
def test_links_between_pages_lead_somewhere(name):
    for link in LINK.findall(PAGES[name]):
        if link.startswith(("http", "auto_gallery")):
            continue
        file, _, anchor = link.partition("#")
        path = (DOCS / file).resolve() if file else DOCS / f"{name}.md"
        assert path.exists(), link
        assert not anchor or anchor in anchors(path.read_text()), link


def test_a_link_to_nowhere_would_be_seen():
    assert LINK.findall("see [this](nowhere.md#at-all)") == ["nowhere.md#at-all"]
    assert anchors("# One, two\n```\n# three\n```\n## When not?") == {"one-two", "when-not"}


def test_every_page_is_in_one_table_of_contents():
    listed = []
    for page in PAGES.values():
        for block in re.findall(r"```\{toctree\}\n(.*?)```", page, re.S):
            # "page" or "Title <page>"
            entries = [line.strip() for line in block.splitlines() if line.strip() and not line.startswith(":")]
            listed += [re.sub(r".*<(.*)>", r"\1", entry) for entry in entries]
    names = [name for entry in listed for name in PAGES if re.fullmatch(entry.replace("*", ".*"), name)]
    assert sorted(names) == sorted(set(PAGES) - {"index"})


def test_every_public_name_has_a_place_in_the_reference():
    """Classes and functions have pages, made from their docstrings; other names are in that of their module."""
    modules = re.findall(r"^   (quernel[.\w]*)$", (DOCS / "api.rst").read_text(), re.M)
    assert len(modules) == 14
    for name in modules:
        module = importlib.import_module(name)
        for public in set(module.__all__) - {"__version__"}:
            value = getattr(module, public)
            own = inspect.isclass(value) or inspect.isfunction(value)
            assert value.__doc__ if own else f"`{public}`" in module.__doc__, f"{name}.{public}"
            assert not own or ".md" not in value.__doc__, (
                f"{name}.{public}: pages are named in words, which become links"
            )


def test_the_version_is_the_same_everywhere():
    root = DOCS.parent
    cited = re.search(r"^version: (.*)$", (root / "CITATION.cff").read_text(), re.M)[1]
    day = re.search(r"^date-released: (.*)$", (root / "CITATION.cff").read_text(), re.M)[1]
    released = re.search(r"^## (\d\S*) \((.*)\)$", (root / "CHANGELOG.md").read_text(), re.M)
    assert cited == quernel.__version__ == released[1]
    assert day == released[2]


def test_the_readme_is_short():
    assert len((DOCS.parent / "README.md").read_text().splitlines()) < 70


def test_the_ten_questions_have_answers_and_a_page_each():
    rows = re.findall(r"^\| (How|Which|What|Can|Is)(.*?\?) \| (.*) \|$", PAGES["index"], re.M)
    assert len(rows) == 10
    assert all(LINK.search(answer) for _, _, answer in rows)
