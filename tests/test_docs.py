"""What the README and the docstrings show is what happens."""

import doctest
import importlib
import inspect
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import typer
from pyarrow import csv
from scipy.spatial.distance import pdist

import quernel.cli
import quernel.conformal.adapters
import quernel.conformal.regressor
import quernel.estimators.classifier
import quernel.estimators.quantile
import quernel.estimators.quantile_cv
import quernel.estimators.regressor
import quernel.kernels.fourier
import quernel.plots
from quernel import theory
from quernel.conformal.table_model import TableModel
from quernel.estimators.shaped_parts import ShapedOptions
from quernel.estimators.shapes import OPTIONS as GRID_OF_SHAPES
from quernel.losses import LOSSES as LOSS_REGISTRY
from quernel.tables.column_stats import OPTIONS
from quernel.tables.training_data import ReadOptions
from support.command_line import run
from support.pages import printed_as_shown
from support.tables import prepare, sales

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SHIPPING = (ROOT / "docs" / "shipping.md").read_text()
COMMAND_LINE = (ROOT / "docs" / "command_line.md").read_text()
COVERAGE = (ROOT / "docs" / "coverage.md").read_text()
BANDS = (ROOT / "docs" / "bands.md").read_text()
THEORY = (ROOT / "docs" / "theory.md").read_text()
LOSSES = (ROOT / "docs" / "losses.md").read_text()
TABLES = (ROOT / "docs" / "tables.md").read_text()
KERNEL = (ROOT / "docs" / "kernel.md").read_text()
PLOTS = (ROOT / "docs" / "plots.md").read_text()
SCALE = (ROOT / "docs" / "scale.md").read_text()


def test_the_examples_of_the_readme_and_of_the_kernel_run_and_say_the_truth(capsys):
    for page, kind, longest in ((README, "TabularQuantileRegressor", 8), (KERNEL, "KernelQuantileRegressor", 16)):
        (example,) = re.findall(r"```python\n(.*?)```", page, re.S)
        assert len([line for line in example.splitlines() if line.strip()]) <= longest
        namespace = {}
        exec(compile(example, "page.md", "exec"), namespace)
        assert 0.87 < float(capsys.readouterr().out.splitlines()[0]) < 0.93
        assert type(namespace["model"]).__name__ == kind
        assert np.all(namespace["model"].duality_gap_ <= 1e-6)


def test_the_commands_at_a_glance_run(tmp_path, monkeypatch):
    """All that take houses.csv and what becomes of it; the others have tests of their own."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    size = rng.gamma(2, 50, 160)
    price = (3000 * size * np.exp(0.1 * rng.standard_normal(160))).round()
    for name in ("houses.csv", "new.csv"):
        csv.write_csv(pa.table({"size": size, "rooms": rng.integers(1, 6, 160), "price": price}), name)
    (glance,) = re.findall(r"^## All commands\n(.*?)^## ", COMMAND_LINE, re.M | re.S)
    commands = re.findall(r"^    quernel (\w+ (?:houses|calibrated)\S* .*?)(?:  +#.*)?$", glance, re.M)
    assert len(commands) == 6
    assert all(f"quernel {command}" in glance for command in re.findall(r"^    quernel (.*)$", README, re.M))
    for command in commands:
        ran = run(*shlex.split(command))
        assert ran.returncode == 0, ran.stderr
    names = (tmp_path / "predicted.csv").read_text().splitlines()[0]
    assert names == '"q0.1","q0.5","q0.9","lower","upper"'
    assert isinstance(quernel.load("houses.quernel").model, quernel.TabularQuantileRegressor)
    assert isinstance(quernel.load("smooth.quernel").model, quernel.KernelQuantileRegressor)


def test_the_page_of_the_kernel_states_the_defaults():
    parameters = inspect.signature(quernel.KernelQuantileRegressor).parameters
    stated = dict(re.findall(r"^\| `(\w+)` \| `(.*?)` \|", KERNEL, re.M))
    assert len(stated) > 8
    assert stated == {name: repr(parameters[name].default).replace("'", '"') for name in stated} | {"tol": "1e-6"}
    assert parameters["tol"].default == 1e-6
    X = np.random.default_rng(0).normal(size=(200, 3)) * [1, 10, 100]
    model = quernel.KernelQuantileRegressor(bandwidth="auto", random_state=0).fit(X, X[:, 0])
    assert f"({model.n_components_} random features for fewer than 1,000 rows)" in KERNEL
    factor = np.mean(model.bandwidth_ / X.std(axis=0)) / np.median(pdist(X / X.std(axis=0)))
    assert f"times {factor:.1f} of the median distance" in KERNEL


def test_the_example_of_rows_beyond_memory_runs(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", SCALE, re.S)
    namespace = {}
    exec(compile(example, "scale.md", "exec"), namespace)
    assert capsys.readouterr().out.splitlines() == ["True", "(24000, 3)"]
    assert namespace["model"].max_memory < 8 * 3 * 24_000  # streamed, as it says
    assert not (namespace["folder"] / "fit.ckpt").exists()


def test_the_coverage_example_covers_once_it_is_calibrated(capsys):
    assert printed_as_shown((ROOT / "docs" / "coverage.md").read_text(), capsys) == 29
    first, second = re.findall(r"```text\n(.*?)```", COVERAGE, re.S)
    found = dict(line.rsplit(" ", 1) for line in first.splitlines())
    assert list(found) == ["as fitted", "calibrated", "cv+", "calm", "windy"]
    assert float(found.pop("as fitted")) < 0.84
    assert all(0.85 < float(share) < 0.96 for share in found.values())  # one set of rows: the promise is for the mean
    split, kernel = ([float(share) for share in re.findall(r"\d\.\d+", line)] for line in second.splitlines())
    assert split[1] < 0.8  # at the ends
    assert kernel[1] > 0.84
    assert kernel[0] > 0.88


def test_the_example_of_bands_finds_the_column_that_matters(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", BANDS, re.S)
    names = {}
    exec(compile(example, "bands.md", "exec"), names)
    first, second = np.split(np.array([float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]), 2)
    np.testing.assert_allclose(first, 0.0005, atol=1e-4)  # as the comment says
    assert second.min() > 0.05
    grid = names["grid"]
    truth = np.sin(grid[:, :1]) + (0.3 + 0.05 * grid[:, :1]) * np.array([-1.2816, 0, 1.2816])
    assert np.mean((names["band"][..., 0] < truth) & (truth < names["band"][..., 1])) > 0.95


def test_the_page_of_bands_shows_what_was_measured():
    from benchmarks.bands_page import END, START, write_tables

    measured = json.loads((ROOT / "benchmarks" / "bands.json").read_text())
    assert write_tables(measured).strip() == BANDS.split(START)[1].split(END)[0].strip()


def test_the_page_of_shapes_shows_what_was_measured():
    from benchmarks.shapes_page import END, START, write_tables

    measured = json.loads((ROOT / "benchmarks" / "shapes.json").read_text())
    page = (ROOT / "docs" / "shapes.md").read_text()
    assert write_tables(measured).strip() == page.split(START)[1].split(END)[0].strip()
    assert all(one["grid"]["share"] == 0 for key, runs in measured["cars"].items() if "with" in key for one in runs)


def test_the_example_of_tails_prints_what_the_page_shows(capsys):
    assert printed_as_shown((ROOT / "docs" / "tails.md").read_text(), capsys) > 20


def test_the_page_of_tails_shows_what_was_measured():
    from benchmarks.tails import LAWS, RESULTS, make_tables

    measured = json.loads(RESULTS.read_text())
    page = (ROOT / "docs" / "tails.md").read_text()
    assert make_tables(measured) == page.partition("<!-- measured -->\n")[2].partition("<!-- end -->")[0]
    for name in LAWS:  # the best of all
        runs = [one for one in measured["simulations"] if one["design"] == name]
        means = {method: np.mean([one["errors"][method] for one in runs]) for method in runs[0]["errors"]}
        assert min(means, key=means.get) == "tails"
    for table in {one["table"] for one in measured["tables"] if "refused" not in one}:
        runs = [one for one in measured["tables"] if one["table"] == table]
        assert sum(one["tails"] for one in runs) <= sum(one["none"] for one in runs)


@pytest.mark.parametrize(
    "name",
    [
        "heavy (Student, 3 degrees)",
        "light (normal)",
        "light (exponential)",
        "bounded (beta(2, 2))",
    ],
)
def test_the_kind_of_most_tails_is_recognised(name):
    from benchmarks.tails import RESULTS

    runs = [one for one in json.loads(RESULTS.read_text())["simulations"] if one["design"] == name]
    assert np.mean([one["kind"] == name.split()[0] for one in runs]) >= 0.75


def test_the_theory_example_prints_what_the_page_shows(capsys):
    assert printed_as_shown(THEORY, capsys) == 102


def test_the_examples_of_the_losses_print_what_the_page_shows(capsys):
    assert printed_as_shown(LOSSES, capsys) > 15
    shown = re.sub(r"(```text\nsquared) 1.5", r"\1 0.5", LOSSES)
    assert shown != LOSSES
    with pytest.raises(AssertionError):
        printed_as_shown(shown, capsys)


def test_the_examples_of_tables_print_what_the_page_shows(capsys):
    assert printed_as_shown(TABLES, capsys) > 60


def test_the_page_of_tables_shows_the_measured_losses():
    found = json.loads((ROOT / "benchmarks" / "encoder.json").read_text())
    assert found["ratio"] <= 1
    assert f"| geometric mean | | | {found['ratio']:.3f} |" in TABLES
    for name, losses in found["losses"].items():
        assert re.search(rf"^\| {name} \| .* \| {losses['TableEncoder'] / losses['skrub']:.3f} \|$", TABLES, re.M)
    assert found["one_row_ms"]["pandas"]["wall"] <= 3
    assert found["one_row_ms"]["array"]["wall"] <= 0.5


def test_the_page_of_tables_states_how_many_categories_have_columns():
    few, rows, most = 30, OPTIONS.min_category_rows, OPTIONS.max_categories
    assert OPTIONS.max_one_hot == few
    assert f"of up to {few} different values | one-hot: a column for each with at least {rows} rows" in TABLES
    assert f"one-hot for the {most} most frequent" in TABLES


def test_the_examples_of_forecasting_print_what_the_page_shows(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert printed_as_shown((ROOT / "docs" / "forecasting.md").read_text(), capsys) > 25


def test_the_page_of_forecasting_shows_the_first_run_of_the_competition():
    first = json.loads((ROOT / "benchmarks" / "gefcom_runs.jsonl").read_text().splitlines()[0])
    page = (ROOT / "docs" / "forecasting.md").read_text()
    assert f"| quernel, first run | {first['rating']:.1f} % | {first['mean']:.2f} |" in page
    assert first["seconds"] < 600
    swiss = json.loads((ROOT / "benchmarks" / "load_ch_runs.jsonl").read_text().splitlines()[0])
    assert f"is {swiss['score']:.4f} (lower is better), after {swiss['seconds']:.0f} s" in page


def test_the_page_of_forecasting_shows_the_series_measured():
    page = (ROOT / "docs" / "forecasting.md").read_text()
    results = json.loads((ROOT / "benchmarks" / "series.json").read_text())
    cases = [(f"{name}, {ahead} ahead", one) for name, both in results.items() for ahead, one in both.items()]
    assert len(cases) == 4
    for name, one in cases:
        losses = [one[system]["loss"] for system in ("quernel", "LightGBM", "week before")]
        assert min(losses) == losses[0]
        assert f"| {name} | " + " | ".join(f"{loss:.2f}" for loss in losses) + " |" in page
        adaptive = {nominal: one["quernel"][f"{nominal}%"] for nominal in (80, 90)}
        quarters = zip(adaptive[80]["quarters"], adaptive[90]["quarters"], strict=True)
        assert f"| {name} | " + " | ".join(f"{100 * a:.1f} / {100 * b:.1f}" for a, b in quarters) + " |" in page
        for nominal, found in adaptive.items():
            assert abs(100 * found["adaptive"] - nominal) < 1
            most = 2 if "day ahead" in name else 5
            assert max(abs(100 * share - nominal) for share in found["quarters"]) < most


def test_the_page_of_forecasting_shows_the_price_of_many_levels():
    page = (ROOT / "docs" / "forecasting.md").read_text()
    found = json.loads((ROOT / "benchmarks" / "level_price.json").read_text())
    names = ("`TabularQuantileRegressor`, the default", "`KernelQuantileRegressor`",
             "the same, fitted at each of the 99 levels")  # fmt: skip
    for name, one in zip(names, found.values(), strict=True):
        assert f"| {name} | {one['ratio']:.1f} x | {one['loss']:.2f} |" in page


def test_the_page_of_losses_has_every_loss():
    for name, loss in LOSS_REGISTRY.items():
        assert f'`"{name}"`, `{loss.__name__}(' in LOSSES


@pytest.mark.parametrize(
    ("name", "length", "share", "sentence"),
    [
        ("huber", "threshold", 0.5, "Huber's threshold and the scale of log-cosh are 0.5"),
        ("logcosh", "scale", 0.5, "Huber's threshold and the scale of log-cosh are 0.5"),
        ("epsilon_insensitive", "epsilon", 0.1, "epsilon and the width of the smoothed pinball loss 0.1"),
        ("smoothed_pinball", "width", 0.1, "epsilon and the width of the smoothed pinball loss 0.1"),
    ],
)
def test_the_page_of_losses_states_their_lengths_in_units_of_the_scale_of_y(name, length, share, sentence):
    assert sentence in " ".join(LOSSES.split())
    X = np.random.default_rng(0).normal(size=(60, 1))
    y = 7 * np.random.default_rng(1).normal(size=60)
    model = quernel.KernelRegressor(name, n_components=5, alpha=1e-2, random_state=0).fit(X, y)
    scale = np.subtract(*np.quantile(y, [0.75, 0.25], method="inverted_cdf")) / 1.349
    np.testing.assert_allclose(getattr(model.loss_, length) / scale, share, rtol=0.02)


def test_the_noncrossing_example_runs_and_says_the_truth(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "noncrossing.md").read_text(), re.S)
    namespace = {}
    exec(compile(example, "noncrossing.md", "exec"), namespace)
    assert namespace["apart"].crossing_rate_ > 0 == namespace["together"].crossing_rate_
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_the_example_of_shapes_runs_and_says_the_truth(capsys):
    page = (ROOT / "docs" / "shapes.md").read_text()
    example = "".join(re.findall(r"```python\n(.*?)```", page, re.S))
    namespace = {}
    exec(compile(example, "shapes.md", "exec"), namespace)
    model, tabular = namespace["model"], namespace["tabular"]
    assert model.duality_gap_.max() <= model.tol
    assert tabular.shape_violation_["lower"] == 0
    assert tabular.parts_.smooth.model.quantiles == [0.02, 0.2, 0.5, 0.8, 0.98]
    assert ShapedOptions().n_components == 300
    assert ShapedOptions().max_rows == 10_000
    assert ShapedOptions().tolerated == 0.05
    assert model.shape_violation_["lower"] < 0.05 * namespace["y"].std()
    assert capsys.readouterr().out == "".join(re.findall(r"```text\n(.*?)```", page, re.S))
    assert f"up to {2 * GRID_OF_SHAPES.n_values} values" in page
    assert f"at {GRID_OF_SHAPES.n_anchors} rows spread" in page
    assert f"at {GRID_OF_SHAPES.n_measured} other lines" in page


def test_the_tuning_example_runs_and_says_the_truth(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "tuning.md").read_text(), re.S)
    namespace = {}
    exec(compile(example, "tuning.md", "exec"), namespace)
    lines = capsys.readouterr().out.splitlines()
    usual, learned = map(float, lines[0].split())
    assert learned > usual + 0.1
    width = namespace["learned"].bandwidth_ / namespace["X"][:400].std(axis=0)
    assert width[2:].min() > 3 * width[:2].max()
    assert float(lines[-1].split()[-1]) > usual + 0.1


def test_the_theory_page_names_functions_that_exist():
    table = [line for line in THEORY.splitlines() if line.startswith("| ")]
    names = {name for line in table for name in re.findall(r"`(\w+)(?:\(.*?\))?`", line)}
    assert len(names) > 15
    assert names <= set(dir(theory))


def test_the_shipping_example_runs_and_says_the_truth(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", SHIPPING, re.S)
    exec(compile(example, "shipping.md", "exec"), {})
    assert capsys.readouterr().out == "True\n"
    assert 10_000 < (tmp_path / "wind.quernel").stat().st_size < 100_000


def test_the_shipping_example_of_onnx_runs(tmp_path, monkeypatch):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    example, _ = re.findall(r"```text\n(.*?)```", SHIPPING, re.S)
    rows = np.random.default_rng(0).random((200, 2))
    model = quernel.KernelQuantileRegressor([0.1, 0.9], n_components=20, random_state=0).fit(rows, rows[:, 0])
    namespace = {"quernel": quernel, "model": model, "rows": rows}
    exec(compile(example, "shipping.md", "exec"), namespace)
    np.testing.assert_allclose(namespace["quantiles"], model.predict(rows), atol=1e-10)


def test_the_shipping_example_of_a_table_as_onnx_runs(tmp_path, monkeypatch):
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    training = prepare(sales(), ReadOptions("price", log_target=True))
    estimator = quernel.KernelQuantileRegressor([0.1, 0.9], n_components=20, random_state=0)
    model = TableModel(training.encoder, estimator.fit(training.rows.X, training.rows.y), "price", log_target=True)
    quernel.save(model, "houses.quernel")
    _, example = re.findall(r"```text\n(.*?)```", SHIPPING, re.S)
    frame = sales(60, seed=1).to_pandas()
    assert frame.isna().to_numpy().any()
    namespace = {"quernel": quernel, "onnxruntime": onnxruntime, "np": np, "frame": frame}
    exec(compile(example, "shipping.md", "exec"), namespace)
    np.testing.assert_allclose(namespace["quantiles"], model.predict(frame), rtol=1e-10)


def test_the_commands_of_the_command_line_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    size = rng.gamma(2, 50, 300)
    price = 3000 * size * np.exp(0.1 * rng.standard_normal(300))
    lines = [
        f"{i},{s:.1f},{'north' if i % 3 else 'south'},{p:.0f}" for i, (s, p) in enumerate(zip(size, price, strict=True))
    ]
    for name, rows in (("houses.csv", lines[:200]), ("new.csv", lines[200:])):
        (tmp_path / name).write_text("\n".join(["id,size,place,price", *rows]) + "\n")
    (commands,) = re.findall(r"```bash\n(.*?)```", COMMAND_LINE, re.S)
    for command in commands.splitlines():
        ran = run(*shlex.split(command)[1:])
        assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1])["rows"] == 100
    assert json.loads(ran.stdout.splitlines()[-1])["intervals"] == [0.5, 0.9]
    assert (tmp_path / "predicted.csv").read_text().splitlines()[0] == '"id","q0.05","q0.5","q0.95"'
    assert (tmp_path / "median.parquet").exists()
    assert quernel.load(tmp_path / "calibrated.quernel").interval.coverage == 0.9
    assert quernel.load(tmp_path / "tuned.quernel").model.n_splits_ == 1
    assert "</html>" in (tmp_path / "houses.html").read_text("utf-8")
    assert "</html>" in (tmp_path / "evaluation.html").read_text("utf-8")


def test_the_example_of_the_plots_runs_and_its_table_has_every_display(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", PLOTS, re.S)
    exec(compile(example, "plots.md", "exec"), {})
    observed = np.array(capsys.readouterr().out.strip("[]\n ").split(), dtype=float)
    np.testing.assert_allclose(observed, [0.05, 0.25, 0.5, 0.75, 0.95], atol=0.05)
    assert (tmp_path / "fan.png").exists()
    assert set(re.findall(r"^\| `(\w+)`", PLOTS, re.M)) == {n for n in quernel.plots.__all__ if n.endswith("Display")}


def test_the_command_line_page_states_which_categories_get_a_column():
    few = int(re.search(r"with at least (\d+) rows, one for all other categories", COMMAND_LINE)[1])
    most = int(re.search(r"Of more than (\d+) categories, each is the mean of the target", COMMAND_LINE)[1])
    for n_others in (most - 2, most - 1):
        counts = {"rare": few - 1, "known": few} | {f"w{k:03}": few + 1 + k for k in range(n_others)}
        text = [category for category, count in counts.items() for _ in range(count)]
        table = pa.table({"text": text, "y": np.arange(float(len(text)))})
        (column,) = prepare(table, ReadOptions("y")).encoder.columns_
        means = n_others + 2 > most
        assert (column.means is not None) == means
        assert set(column.categories) == set(counts) - (set() if means else {"rare"})


def test_the_command_line_page_names_options_that_exist():
    commands = typer.main.get_command(quernel.cli.app).commands
    known = {option for command in commands.values() for parameter in command.params for option in parameter.opts}
    named = set(re.findall(r"`(--[a-z-]+)", COMMAND_LINE))
    assert len(named) > 30
    assert named - known == set()


@pytest.mark.parametrize("name", re.findall(r"\]\(([^)#]+)\)", README))
def test_links_of_the_readme_lead_somewhere(name):
    assert name.startswith("http") or (ROOT / name).exists(), name


@pytest.mark.parametrize(
    "module",
    [
        quernel.conformal.regressor,
        quernel.estimators.quantile,
        quernel.estimators.regressor,
        quernel.estimators.classifier,
        quernel.kernels.fourier,
        quernel.estimators.quantile_cv,
    ],
)
def test_docstring_examples(module):
    failed, tried = doctest.testmod(module)
    assert tried > 3
    assert failed == 0


@pytest.mark.parametrize("module", ["rates", "dimensions", "decomposition", "planning", "noise"])
def test_docstring_examples_of_the_theory(module):
    failed, tried = doctest.testmod(
        importlib.import_module(f"quernel.theory.{module}"), extraglobs={"SplinePopulation": theory.SplinePopulation}
    )
    assert tried > 0
    assert failed == 0
