"""`quernel reproduce` as a person meets it, and its numbers beside those of the committed full run."""

import csv
import math
import re
import shutil
from pathlib import Path

import pytest

from support.command_line import run, run_process

pytest.importorskip("matplotlib")

SUMMARY = Path(__file__).parents[2] / "docs" / "reproduction" / "tables"
# Where KQR-RF means stand, the columns that name them, and a size of the full run whose means must not pass for those
# of the larger quick size.
MEANS = [
    ("sample_size_homoscedastic.csv", ("level", "N"), "KQR-RF", 500),
    ("sampling_heteroscedastic.csv", ("level", "M"), "uniform", 5),
]


def means(path, names, method):
    """(mean, sd, repetitions) of the PQE by level and size."""
    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if row["method"] == method]
    return {
        tuple(float(row[name]) for name in names): (float(row["mean PQE"]), float(row["sd"]), int(row["repetitions"]))
        for row in rows
    }


def standard_errors_off(few, full):
    """The difference of two means over sd_full sqrt(1/n_quick + 1/n_full)."""
    return abs(few[0] - full[0]) / (full[1] * math.sqrt(1 / few[2] + 1 / full[2]))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "columns", "method", "wrong"), MEANS)
def test_quick_means_agree_with_the_full_run(quick, name, columns, method, wrong):
    few = means(quick.folder / "out" / "tables" / name, columns, method)
    full = means(SUMMARY / name, columns, method)
    assert len(few) == 10, "five levels, two sizes"
    for key, mean in few.items():
        assert standard_errors_off(mean, full[key]) < 3, key
    larger, levels = max(size for _, size in few), {level for level, _ in few}
    mistaken = [(full[level, wrong][:2] + few[level, larger][2:], full[level, larger]) for level in levels]
    assert max(standard_errors_off(*pair) for pair in mistaken) > 3, "means of another size would be noticed"


@pytest.mark.slow
def test_quick_writes_the_page_the_tables_the_figures_and_the_summary(quick):
    out, kept = quick.folder / "out", quick.folder / "kept"
    page = (out / "index.html").read_text()
    assert page.count("<h2>") == 2
    assert page.count('src="data:image/png;base64,') == 2
    assert "http" not in page.replace("https://www.kaggle.com", "")
    for kind, ending in (("figures", "png"), ("figures", "svg"), ("tables", "csv"), ("tables", "md")):
        assert (out / kind / f"sample_size_homoscedastic.{ending}").stat().st_size > 500
    assert (out / "rows" / "sampling_heteroscedastic.parquet").exists()
    assert "tasks" in quick.ran.stderr, "progress does not mix with results"
    assert "Bayes risk" in page
    assert "below the Bayes risk" in page
    readme = (kept / "README.md").read_text()
    assert "quernel reproduce tab.2 fig4 --quick --seed 1" in readme
    links = re.findall(r"\]\((.+?)\)", readme)
    assert len(links) >= 2
    for link in links:
        assert (kept / link).exists(), link


@pytest.mark.slow
def test_a_second_run_measures_nothing_again(quick, tmp_path):
    shutil.copytree(quick.folder / "out", tmp_path / "out")
    ran = run_process("reproduce", "tab.2", "fig4", "--quick", "--seed", 1, "--out", "out", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "12 tasks were finished before; 0 are left" in ran.stderr


def test_the_list_names_every_item_and_its_label(tmp_path):
    ran = run("reproduce", "--list", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    for word in ("tab.2", "tab.3", "tab.4", "fig2", "fig3", "fig4", "price_fig", "used_cars", "beyond the paper"):
        assert word in ran.stdout, word


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["tab.22"], ("no experiment 'tab.22'", "Did you mean 'tab.2'")),
        (["used_cars"], ("--used-cars", "kaggle.com")),
        (["tab.4", "--used-cars", "nowhere.csv"], ("no used cars at nowhere.csv", "kaggle.com")),
        (["tab.2", "--out", "mine"], ("did not write", "--force")),
        (["tab.2", "--out", "mine/note.txt"], ("is a file",)),
    ],
)
def test_what_a_person_can_mend_is_said_before_any_work(tmp_path, arguments, messages):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "note.txt").write_text("mine")
    ran = run("reproduce", *arguments, "--quick", cwd=tmp_path)
    assert ran.returncode == 1
    for message in messages:
        assert message in ran.stderr, ran.stderr
    assert ran.stdout == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]
