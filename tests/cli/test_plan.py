"""`quernel plan` as a person meets it."""

import json
import re
import shlex

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import quernel
import quernel.data.design_matrix
from quernel import estimate_cost
from quernel.tuning.cost import as_duration, as_size
from support.command_line import run, run_process
from support.tables import sales


@pytest.fixture(autouse=True)
def in_the_folder_of_the_data(monkeypatch, folder):
    monkeypatch.chdir(folder)


def refused(ran, *messages):
    assert ran.returncode == 1, ran.stdout
    assert ran.stderr.startswith("Error:")
    assert len(ran.stderr.strip().splitlines()) == 1
    for message in messages:
        assert message in ran.stderr, message


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The same rows as CSV and as Parquet, with a column of text, one of 0/1 and a missing value."""
    folder = tmp_path_factory.mktemp("plan")
    rng = np.random.default_rng(0)
    x = rng.random((400, 2))
    y = 100 * np.abs(x[:, 0] - 0.5) + rng.standard_normal(400)
    first = [None, *x[1:, 0].tolist()]
    flag = (x[:, 1] > 0.5).tolist()
    table = pa.table({"first": first, "second": x[:, 1], "flag": flag, "name": ["a"] * 400, "price": y})
    pq.write_table(table, folder / "data.parquet")
    lines = ["first,second,flag,name,price"]
    for row in zip(first, x[:, 1].tolist(), flag, ["a"] * 400, y.tolist(), strict=True):
        lines.append(",".join("" if value is None else str(value).lower() for value in row))
    (folder / "data.csv").write_text("\n".join(lines) + "\n")
    (folder / "few.csv").write_text("x,y\n" + "".join(f"{i},{i % 7}\n" for i in range(30)))
    (folder / "broken.csv").write_text("x,y\n1,2\n1,2,3\n")
    (folder / "empty.csv").write_text("")
    (folder / "header.csv").write_text("x,y\n")
    (folder / "broken.parquet").write_bytes(b"not parquet")
    return folder


def test_from_exponents():
    ran = run("plan", "--rows", 10_000, "--r", 0.5, "--gamma", 1)
    assert ran.returncode == 0, ran.stderr
    for text in ("10,000 rows", "100 ", "8.0 MB", "1.00e-02", "n^-0.50", "worst case", "if C = 1", "unknown C"):
        assert text in ran.stdout, text
    assert "quernel fit" not in ran.stdout
    better = run("plan", "--rows", 10_000, "--r", 0.5, "--gamma", 0.5, "--compatibility", 0.8)
    for text in ("136 ", "22 ", "11 MB", "1.8 MB", "n^-0.67"):
        assert text in better.stdout, text


def cells(text, row):
    """The two figures of a row of the plan."""
    (line,) = [line for line in text.splitlines() if row in line]
    return [cell.strip() for cell in line.split("│")[2:4]]


def test_memory_and_time_are_those_of_the_fit_that_is_recommended(folder):
    given = "--rows", 3_000_000, "--r", 0.5, "--gamma", 0.5, "--compatibility", 0.5
    narrow, wide = run("plan", *given).stdout, run("plan", *given, "--width", 400).stdout
    uniform, leverage = (int(M.replace(",", "")) for M in cells(narrow, "features M"))
    for M, shown in zip((uniform, leverage), cells(wide, "peak memory"), strict=True):
        assert as_size(estimate_cost(3_000_000, 400, M).peak_memory) == shown
    assert cells(narrow, "peak memory") == cells(run("plan", *given, "--width", 10).stdout, "peak memory")
    assert run("plan", *given, "--columns", 400).stdout == wide  # as it was called once
    assert cells(narrow, "time of a fit") != cells(wide, "time of a fit")
    assert all(re.fullmatch(r"[\d.]+ (s|min|h)", cell) for cell in cells(narrow, "time of a fit"))


def test_features_that_memory_cannot_store_are_said_to_be_recomputed(monkeypatch):
    monkeypatch.setattr(quernel.data.design_matrix, "available_memory", lambda: 2 * 10**9)
    many = run("plan", "--rows", 1_000_000, "--r", 0.5, "--gamma", 0.5)
    stored = cells(many.stdout, "features stored")
    assert stored[0] == "no, recomputed"
    assert stored[1].endswith("MB")


@pytest.mark.slow
def test_from_a_file_and_with_a_map(folder):
    pytest.importorskip("matplotlib")
    plot = folder / "map.png"
    ran = run("plan", folder / "data.parquet", "--target", "price", "--plot", plot)
    assert ran.returncode == 0, ran.stderr
    for text in ("400 rows", "source r", "capacity gamma", "estimated", "95% interval", "kernel gap", "alpha", "Plot:"):
        assert text in ran.stdout, text
    assert "'name' is left out: it is 'a' everywhere" in ran.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")
    plot.write_bytes(b"mine")
    refused(run("plan", folder / "data.parquet", "--target", "price", "--plot", plot), "--force")
    assert plot.read_bytes() == b"mine"
    given = "--r", 0.5, "--gamma", 0.5
    forced = run("plan", "--rows", 1000, *given, "--plot", plot, "--force")
    assert forced.returncode == 0, forced.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_noise_is_said_to_leave_the_source_exponent_open(tmp_path):
    rng = np.random.default_rng(0)
    pq.write_table(pa.table({"x": rng.random(300), "y": rng.standard_normal(300)}), tmp_path / "noise.parquet")
    ran = run("plan", tmp_path / "noise.parquet", "--target", "y", "--rows", 5000)
    assert ran.returncode == 0, ran.stderr
    assert "assumed" in ran.stdout
    assert "noise" in ran.stdout
    assert "5,000 rows" in ran.stdout


QUICK = "--subsample", 200, "--json"


def planned(ran):
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_csv_and_parquet_are_read_alike(folder):
    plans = [planned(run("plan", folder / name, "--target", "price", *QUICK)) for name in ("data.csv", "data.parquet")]
    for made, name in zip(plans, ("data.csv", "data.parquet"), strict=True):
        commands = [way.pop("command") for way in made["sampling"].values()]
        assert all(shlex.split(one)[2] == str(folder / name) for one in commands)
    assert plans[0] == plans[1]
    assert plans[0]["rows"] == 400
    assert plans[0]["columns"] == 4  # one says where the first is missing
    assert plans[0]["notes"][0] == "Column 'name' is left out: it is 'a' everywhere."


def test_the_constant_is_known_from_a_file_only(folder):
    made = planned(run("plan", folder / "data.csv", "--target", "price", *QUICK, "--rows", 800))
    for way in made["sampling"].values():
        low, high = way["constant_interval"]
        assert low < way["constant"] < high
        least, most = way["n_components_interval"]
        assert least < way["n_components"] < most
        assert way["n_components"] == pytest.approx(way["constant"] * 800 ** way["exponent"], abs=1)
        assert (way["pilot_rows"], way["kernel_gap_of_pilot"]) == (200, 0.01)
        assert way["kernel_gap_interval"][0] < way["kernel_gap"] < way["kernel_gap_interval"][1]
        assert way["kernel_gap_scatter"] > 0
    looser = planned(run("plan", folder / "data.csv", "--target", "price", *QUICK, "--rows", 800, "--kernel-gap", 0.05))
    for name, way in looser["sampling"].items():
        assert way["n_components"] < made["sampling"][name]["n_components"] / 2
    without = planned(run("plan", "--rows", 800, "--r", 0.5, "--gamma", 0.5, "--json"))
    assert without["recommended"] is None
    for way in without["sampling"].values():
        assert way["constant"] is way["kernel_gap"] is way["command"] is None
    assert without["sampling"]["leverage"]["n_components"] == 10  # 800^(1/3)


def test_a_plan_is_repeatable(folder):
    plans = [
        planned(run("plan", folder / "data.csv", "--target", "price", *QUICK, "--seed", seed)) for seed in (1, 1, 2)
    ]
    assert plans[0] == plans[1]
    assert plans[0]["sampling"] != plans[2]["sampling"]


def test_the_command_that_is_printed_does_what_is_recommended(folder, tmp_path):
    options = "--exclude", "second", "--categorical", "flag", "--kernel", "laplacian", "--level", 0.4
    made = planned(run("plan", folder / "data.csv", "--target", "price", *QUICK, *options, "--kernel-gap", 0.05))
    best = made["sampling"][made["recommended"]]
    assert best["n_components"] == min(way["n_components"] for way in made["sampling"].values())
    for name, way in made["sampling"].items():
        program, *arguments = shlex.split(way["command"])
        assert program == "quernel"
        assert arguments[arguments.index("MODEL.quernel") - 1] == "--model"
        arguments[arguments.index("MODEL.quernel")] = tmp_path / name
        ran = run(*arguments, "--json")
        assert ran.returncode == 0, ran.stderr
        fitted = json.loads(ran.stdout)
        assert (fitted["n_components"], fitted["quantiles"]) == (way["n_components"], [0.4])
        assert fitted["alpha"] == pytest.approx(made["alpha"], rel=0.01)
        assert fitted["encoded_columns"] == made["columns"]
        model = quernel.load(tmp_path / name).model
        assert (model.kernel, model.sampling) == ("laplacian", name)
    shown = run(
        "plan", folder / "data.csv", "--target", "price", "--subsample", 200, *options, "--kernel-gap", 0.05
    ).stdout
    assert f"To fit this: {best['command']}" in shown
    assert f"takes about {as_duration(made['tabular_seconds'])} for so many rows" in " ".join(shown.split())


@pytest.mark.slow
def test_fits_by_the_printed_command_have_the_kernel_gap_that_was_promised(tmp_path):
    """On average over draws, within a factor of two; and single draws scatter as much as the plan says."""
    rng = np.random.default_rng(0)
    X = rng.random((2000, 2))
    y = np.sin(6 * X[:, 0]) + X[:, 1] + 0.3 * rng.standard_normal(2000)
    pq.write_table(pa.table({"a": X[:, 0], "b": X[:, 1], "y": y}), tmp_path / "t.parquet")
    made = planned(run("plan", tmp_path / "t.parquet", "--target", "y", "--subsample", 500, "--json"))
    way = made["sampling"]["uniform"]
    _, *arguments = shlex.split(way["command"])
    proved = []
    for seed in range(8):
        ran = run(
            *(tmp_path / "m" if word == "MODEL.quernel" else word for word in arguments), "--seed", seed, "--force"
        )
        assert ran.returncode == 0, ran.stderr
        model = quernel.load(tmp_path / "m").model
        proved.append(model.kernel_gap(X, y))
    assert all(gap.upper[0] - gap.lower[0] < way["kernel_gap"] / 4 for gap in proved)
    middles = np.array([(gap.upper[0] + gap.lower[0]) / 2 for gap in proved])
    error = middles.std(ddof=1) / np.sqrt(len(middles))
    assert way["kernel_gap"] / 2 - 2 * error <= middles.mean() <= 2 * way["kernel_gap"] + 2 * error
    assert way["kernel_gap_scatter"] / 3 < middles.std(ddof=1) < 3 * way["kernel_gap_scatter"]
    assert np.all(np.abs(middles - way["kernel_gap"]) < 4 * way["kernel_gap_scatter"])


def test_where_features_are_no_fewer_than_rows_the_kernel_itself_is_recommended(folder):
    made = planned(run("plan", folder / "data.csv", "--target", "price", *QUICK, "--rows", 30, "--kernel-gap", 0.001))
    for way in made["sampling"].values():
        assert (way["n_components"], way["kernel_gap"]) == ("exact", 0)
        assert way["command"].endswith("--components exact")
    shown = run(
        "plan", folder / "data.csv", "--target", "price", "--subsample", 200, "--rows", 30, "--kernel-gap", 0.001
    )
    assert "no fewer than rows" in " ".join(shown.stdout.split())


def test_a_file_is_read_as_fit_reads_it(folder, tmp_path):
    """Text, dates and gaps: a plan for the problem that is fitted, not for its columns of numbers and whole rows."""
    pq.write_table(sales(), tmp_path / "sales.parquet")
    made = run(
        "fit", tmp_path / "sales.parquet", "--target", "price", "--model", tmp_path / "m", "--components", 9, "--json"
    )
    fitted = json.loads(made.stdout)
    plan = planned(run("plan", tmp_path / "sales.parquet", "--target", "price", *QUICK))
    assert (plan["rows"], plan["columns"]) == (fitted["rows"], fitted["encoded_columns"])
    some = planned(run("plan", tmp_path / "sales.parquet", "--target", "price", *QUICK, "--columns", "place,sold"))
    fewer = planned(run("plan", tmp_path / "sales.parquet", "--target", "price", *QUICK, "--exclude", "place,sold"))
    assert some["columns"] + fewer["columns"] == plan["columns"]
    assert some["exponents"] != plan["exponents"]
    assert planned(run("plan", tmp_path / "sales.parquet", "--target", "price", *QUICK, "--width", 7))["columns"] == 7


@pytest.mark.parametrize("name", ["gaps", "words"])
def test_rows_with_missing_values_and_columns_of_text_alone_can_be_planned(tmp_path, name):
    rng = np.random.default_rng(0)
    a, b, y = rng.random(300).tolist(), rng.random(300).tolist(), rng.random(300)
    for i in range(300):
        (a, b)[i % 2][i] = None
    columns = {"gaps": {"a": a, "b": b}, "words": {"a": ["x", "y", "z"] * 100}}[name]
    pq.write_table(pa.table(columns | {"y": y}), tmp_path / "t.parquet")
    plan = planned(run("plan", tmp_path / "t.parquet", "--target", "y", *QUICK))
    assert (plan["rows"], plan["columns"]) == (300, {"gaps": 4, "words": 3}[name])


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        ([], ["--target", "--rows"]),
        (["--rows", "1000"], ["--r and --gamma"]),
        (["--rows", "1000", "--r", "0.2", "--gamma", "0.1"], ["2r + gamma must be at least 1, got 0.5"]),
        (["--rows", "1000", "--r", "2", "--gamma", "0.1"], ["r must lie in (0, 1], got 2"]),
        (["data.csv"], ["--target"]),
        (["data.csv", "--target", "cost"], ["'cost'", "first, second, flag, name, price"]),
        (["data.csv", "--target", "name"], ["'name'", "string"]),
        (["data.csv", "--target", "price", "--kernel", "linear"], ["--kernel", "gaussian"]),
        (["data.csv", "--target", "price", "--level", "1.5"], ["--level", "1.5"]),
        (["data.csv", "--target", "price", "--kernel-gap", "0"], ["--kernel-gap", "between 0.0001 and 0.5", "got 0."]),
        (["few.csv", "--target", "y"], ["30 rows with a target", "200"]),
        (["data.csv", "--target", "price", "--columns", "frist"], ["'frist'", "'first'"]),
        (["data.csv", "--target", "price", "--exclude", "frist"], ["'frist'", "'first'"]),
        (["--rows", "1000", "--r", "0.5", "--gamma", "1", "--columns", "first"], ["data file", "--width"]),
        (["--rows", "1000", "--r", "0.5", "--gamma", "1", "--exclude", "first"], ["--exclude applies to", "data file"]),
        (["header.csv", "--target", "y"], ["header.csv has no rows"]),
        (["broken.csv", "--target", "y"], ["cannot be read as CSV"]),
        (["empty.csv", "--target", "y"], ["cannot be read as CSV"]),
        (["broken.parquet", "--target", "y"], ["broken.parquet cannot be read"]),
        (["nowhere.csv", "--target", "y"], ["not a file"]),
        (["--rows", "1000", "--r", "1", "--gamma", "0", "--plot", "no/such/map.png"], ["folder", "missing"]),
        (["--rows", "1000", "--r", "1", "--gamma", "0", "--plot", "map.xyz"], ["--plot must end in one of", ".png"]),
    ],
)
def test_what_a_user_can_mend_is_said_in_one_line(arguments, messages):
    refused(run("plan", *arguments), *messages)


def test_an_unknown_format_is_refused(tmp_path):
    (tmp_path / "data.xls").write_text("x")
    refused(run("plan", tmp_path / "data.xls", "--target", "y"), ".csv", ".parquet")


def test_a_process_that_read_files_ends_well(folder):
    """Arrow's threads can abort the interpreter when it exits: the exit code would tell."""
    reading = "from pathlib import Path\nfrom quernel.tables.files import open_table\n" + "".join(
        f"with open_table(Path('{name}')) as table:\n    print(len(table.read()))\n"
        for name in ("data.csv", "data.parquet")
    )
    ran = run_process(code=reading, cwd=folder)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["400", "400"]
