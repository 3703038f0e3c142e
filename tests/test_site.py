"""The pages of the documentation site: their snippets run, their links lead somewhere, and each has its place."""

import re
from pathlib import Path

import pytest

import quernel
from support.pages import printed_as_shown

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {page.stem: page.read_text() for page in DOCS.glob("*.md")}
LINK = re.compile(r"(?<!`)\]\(([^)\s]+)\)")


@pytest.mark.parametrize("name", ["levels", "intervals", "trust", "speed"])
def test_the_examples_print_what_the_page_shows(name, capsys):
    assert printed_as_shown(PAGES[name], capsys) >= 3


def test_getting_started_runs_and_prints_what_it_shows(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert printed_as_shown(PAGES["getting_started"], capsys) == 10
    assert (tmp_path / "fan.png").exists()


def test_the_snippets_beside_other_libraries_run(capsys):
    """Those in a block of `py` are of libraries that the tests do not install."""
    pytest.importorskip("mapie")
    namespace = {}
    for snippet in re.findall(r"```python\n(.*?)```", PAGES["coming_from"], re.S):
        exec(compile(snippet, "coming_from.md", "exec"), namespace)
    assert capsys.readouterr().out == "True\n"
    assert namespace["conformal"].predict_interval(namespace["X_new"]).shape == (5, 2)


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
            listed += [line.strip() for line in block.splitlines() if line.strip() and not line.startswith(":")]
    names = [name for entry in listed for name in PAGES if re.fullmatch(entry.replace("*", ".*"), name)]
    assert sorted(names) == sorted(set(PAGES) - {"index"})


def test_the_version_is_the_same_everywhere():
    root = DOCS.parent
    cited = re.search(r"^version: (.*)$", (root / "CITATION.cff").read_text(), re.M)[1]
    day = re.search(r"^date-released: (.*)$", (root / "CITATION.cff").read_text(), re.M)[1]
    released = re.search(r"^## (\d\S*) \((.*)\)$", (root / "CHANGELOG.md").read_text(), re.M)
    assert cited == quernel.__version__ == released[1]
    assert day == released[2]


def test_the_readme_is_short():
    assert len((DOCS.parent / "README.md").read_text().splitlines()) < 70
