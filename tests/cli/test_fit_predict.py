"""`quernel tune`, `quernel fit` and `quernel predict` as a person meets them."""

import gzip
import json
import os
import resource
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

import quernel
from quernel import ConformalQuantileRegressor, KernelQuantileRegressor, KernelQuantileRegressorCV
from quernel.cli.options import FitOptions, TrainingOptions
from quernel.conformal.table_model import TableModel
from quernel.data import sources
from quernel.tables.files import open_table
from quernel.tables.training_data import ReadOptions
from support.command_line import run
from support.models import plain_regressor
from support.tables import prepare, read_table, sales

QUICK = ("--components", "40", "--quantiles", "0.1,0.5,0.9")


@pytest.fixture(autouse=True)
def in_the_folder_of_the_data(monkeypatch, folder):
    monkeypatch.chdir(folder)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Data in every format, whole and broken, and a model that was fitted to them."""
    folder = tmp_path_factory.mktemp("files")
    table = sales()
    csv.write_csv(table, folder / "sales.csv")
    (folder / "sales.csv.gz").write_bytes(gzip.compress((folder / "sales.csv").read_bytes()))
    with pa.output_stream(str(folder / "sales.csv.zst"), compression="zstd") as stream:
        stream.write((folder / "sales.csv").read_bytes())
    pq.write_table(table, folder / "sales.parquet", row_group_size=150)
    pyarrow.feather.write_feather(table, folder / "sales.feather")
    with pa.ipc.new_stream(str(folder / "sales.arrow"), table.schema) as writer:
        writer.write_table(table)
    lines = (folder / "sales.csv").read_text().splitlines()
    (folder / "sales.tsv").write_text("\n".join(line.replace(",", "\t") for line in lines) + "\n")
    (folder / "empty.csv").write_text("")
    (folder / "header.csv").write_text(lines[0] + "\n")
    (folder / "twice.csv").write_text("x,x,y\n" + "1,2,3\n" * 30)
    (folder / "ragged.csv").write_text("x,y\n1,2\n1,2,3\n")
    (folder / "torn.parquet").write_bytes((folder / "sales.parquet").read_bytes()[:-100])
    (folder / "torn.csv.gz").write_bytes((folder / "sales.csv.gz").read_bytes()[:2000])
    (folder / "noise.feather").write_bytes(os.urandom(3000))
    (folder / "lost.csv").write_text("x,y\n" + "".join(f"{i},\n" for i in range(30)))
    (folder / "flat.csv").write_text("x,y\n" + "".join(f"1,{i}\n" for i in range(30)))
    (folder / "flat2.csv").write_text("x,y\n" + "".join(f"{i},{i % 5}\n" for i in range(30)))
    (folder / "ends.csv").write_text("x,lower\n1,2\n")
    (folder / "few.csv").write_text("x,y\n1,2\n2,3\n")
    (folder / "other.csv").write_text("cement,water\n" + "1,2\n" * 30)
    (folder / "words.csv").write_text(
        "\n".join([lines[0], *(f'"big",{line.split(",", 1)[1]}' for line in lines[1:])]) + "\n"
    )
    (folder / "negative.csv").write_text("x,y,w\n" + "".join(f"{i},{i - 3},{i - 9}\n" for i in range(30)))
    (folder / "pairs.csv").write_text("x,g,one,y\n" + "".join(f"{i},{'abc'[i % 3]},u,{i % 7}\n" for i in range(60)))
    (folder / "gappy.csv").write_text("x,y,w\n" + "".join(f"{i},{i % 7},{i % 3 or ''}\n" for i in range(30)))
    with zipfile.ZipFile(folder / "some.zip", "w") as archive:
        archive.writestr("mine", "mine")
    (folder / "loners.csv").write_text("x,g,y\n" + "".join(f"{i},{i % 3 or ''},{i % 7}\n" for i in range(60)))
    (folder / "same.csv").write_text("x,y\n" + "".join(f"{i},5\n" for i in range(30)) + "31,\n")
    pq.write_table(read_table(folder / "same.csv"), folder / "same.parquet")
    (folder / "commas.csv").write_text('"size, m2",age,y\n' + "".join(f"{i},{i % 5},{i % 7}\n" for i in range(30)))
    (folder / "marks.csv").write_text("x,y\n" + "".join(f"{i},{i % 7 or '?'}\n" for i in range(30)))
    (folder / "old.csv").write_text("mine")
    (folder / "notes.xls").write_text("mine")
    return folder


@pytest.fixture(scope="module")
def folder(made):
    fit = run("fit", "sales.parquet", "--target", "price", "--model", "m.quernel", *QUICK, cwd=made)
    assert fit.returncode == 0, fit.stderr
    training = prepare(read_table(made / "flat2.csv"), ReadOptions("y"))
    base = plain_regressor([0.2, 0.8], n_components=5, random_state=0)
    interval = ConformalQuantileRegressor(base, 0.5, random_state=0).fit(training.rows.X, training.rows.y)
    model = TableModel(training.encoder, interval.estimators_[0], "y", interval=interval)
    quernel.save(model, made / "interval.quernel")
    damaged = bytearray((made / "m.quernel").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (made / "damaged.quernel").write_bytes(bytes(damaged))
    X = np.random.default_rng(0).random((40, 2))
    quernel.save(plain_regressor(n_components=5).fit(X, X[:, 0]), made / "arrays.quernel")
    return made


def test_fit_says_what_it_did(folder):
    ran = run("fit", "sales.csv", "--target", "price", "--model", "said.quernel", *QUICK)
    assert ran.returncode == 0, ran.stderr
    for word in (
        "place",
        "text",
        "east, north, south",
        "(missing)",
        "trend",
        "certified gap",
        "said.quernel",
        "40 features",
    ):
        assert word in ran.stdout, word
    dropped = sales()["price"].null_count
    assert f"{dropped} rows without a target are left out" in ran.stderr


def test_a_name_with_a_comma_is_quoted_in_a_list(folder, tmp_path):
    more = "--model", tmp_path / "m", *QUICK, "--force", "--json"
    chosen = json.loads(run("fit", "commas.csv", "--target", "y", "--columns", '"size, m2", age', *more).stdout)
    assert list(chosen["columns"]) == ["size, m2", "age"]
    left = json.loads(run("fit", "commas.csv", "--target", "y", "--exclude", '"size, m2"', *more).stdout)
    assert list(left["columns"]) == ["age"]


@pytest.mark.parametrize("memory", [(), ("--max-memory", "1kB")], ids=["whole", "in parts"])
def test_missing_markers(folder, tmp_path, memory):
    """They make no text of numbers, in the target neither, and the model knows them afterwards."""
    rng = np.random.default_rng(0)
    values = [f"{x:.4f}" for x in rng.random(300)]

    def written(name, *marks):
        rows = [(marks[i % len(marks)] if i % 10 == 3 else v, marks[0] if i == 7 else v) for i, v in enumerate(values)]
        (tmp_path / name).write_text(
            "x,place,y\n" + "".join(f"{x},{'ab'[i % 2]},{y}\n" for i, (x, y) in enumerate(rows))
        )
        return tmp_path / name

    data, gaps, other = written("marks.csv", "?", "not known"), written("gaps.csv", ""), written("other.csv", "none")
    ways = {}
    for name, path, more in (("m", data, ("--missing", "?, not known")), ("plain", gaps, ())):
        ran = run("fit", path, "--target", "y", "--model", tmp_path / name, *QUICK, *more, *memory, "--json")
        assert ran.returncode == 0, ran.stderr
        ways[name] = json.loads(ran.stdout)
    assert ways["m"]["columns"] == ways["plain"]["columns"] == {"x": "number", "place": "text"}
    assert ways["m"]["rows"] == ways["plain"]["rows"] == 299
    assert ways["m"]["alpha"] == ways["plain"]["alpha"]
    assert quernel.load(tmp_path / "m").encoder.missing == ("?", "not known")
    found = []
    for model, path in (("m", data), ("plain", gaps)):
        assert run("predict", tmp_path / model, path, "--out", tmp_path / f"{model}.csv").returncode == 0
        found.append((tmp_path / f"{model}.csv").read_text())
    assert found[0] == found[1]
    report = run("report", tmp_path / "m", data, "--out", tmp_path / "r.html", "--json")
    assert json.loads(report.stdout)["rows_evaluated"] == 299
    refused(run("predict", tmp_path / "m", other, "--out", tmp_path / "no.csv"), "'x' holds strings such as 'none'")


LOOKS = {
    "words among numbers": (
        lambda i: "unknown" if i % 40 == 5 else f"{i / 7:.3f}",
        ["is left out", "dates, such as '0.000'", "not 'unknown' (in 10 of 400 rows)", "--missing '\"unknown\"'"],
    ),
    "words among few numbers": (
        lambda i: ["1", "2", "3", "?"][i % 4],
        ["is text that mostly looks like numbers", "--missing '\"?\"'"],
    ),
    "thousands": (
        lambda i: f"{i * 1009:,}",
        ["looks like numbers or dates, such as '1,009'", "Write them like 1234.5 and 2020-12-31"],
    ),
    "money": (
        lambda i: f"${i * 1009:,}",
        ["identifier of the row. It is text that mostly looks like numbers or dates, such as '$0'. Write them like"],
    ),
    "per cent": (lambda i: f"{i % 8}%", ["is text that mostly looks like numbers", "such as '0%'"]),
    "decimal commas": (
        lambda i: f"0,{i % 8}",
        ["is text that mostly looks like numbers", "such as '0,0'. Write them like 1234.5"],
    ),
    "days first": (
        lambda i: f"{1 + i % 28}/12/2020",
        ["holds dates, day first, such as '1/12/2020'", "is read as these"],
    ),
    "words among dates": (
        lambda i: "never" if i % 10 == 3 else f"2020-{1 + i % 12:02}-{1 + i % 28:02}",
        ["dates, such as '2020-01-01'", "--missing '\"never\"'"],
    ),
}


@pytest.mark.parametrize("memory", [(), ("--max-memory", "1kB")], ids=["whole", "in parts"])
@pytest.mark.parametrize("name", LOOKS)
def test_text_that_looks_like_numbers_or_dates_is_pointed_out(folder, tmp_path, name, memory):
    make, texts = LOOKS[name]
    lines = [f'"{make(i)}","{"red" if i % 2 else "blue"} {i % 3}",{i % 7}' for i in range(400)]
    (tmp_path / "t.csv").write_text("a,b,y\n" + "\n".join(lines) + "\n")
    ran = run("fit", tmp_path / "t.csv", "--target", "y", "--model", tmp_path / "m", *QUICK, *memory)
    assert ran.returncode == 0, ran.stderr
    notes = [line for line in ran.stderr.splitlines() if line.startswith("Note:")]
    (note,) = [
        line for line in notes if "means of the target stand for them" not in line
    ]  # and none of the other words
    assert note.startswith("Note: Column 'a' is ")
    for word in texts:
        assert word in note, note


@pytest.mark.parametrize("memory", [(), ("--max-memory", "1kB")], ids=["whole", "in parts"])
def test_infinite_values_are_counted(folder, tmp_path, memory):
    lines = [f"{'inf' if i in (3, 4) else i},{'-inf' if i == 7 else '' if i == 9 else i % 7}" for i in range(60)]
    (tmp_path / "t.csv").write_text("x,y\n" + "\n".join(lines) + "\n")
    ran = run("fit", tmp_path / "t.csv", "--target", "y", "--model", tmp_path / "m", *QUICK, *memory)
    assert ran.returncode == 0, ran.stderr
    assert "Column 'x' is infinite in 2 of 58 rows, treated as missing." in ran.stderr
    assert "2 rows without a target are left out." in ran.stderr
    ran = run("predict", tmp_path / "m", tmp_path / "t.csv", "--out", tmp_path / "p.csv", "--json")
    assert json.loads(ran.stdout)["rows"] == 60
    ran = run("report", tmp_path / "m", tmp_path / "t.csv", "--out", tmp_path / "r.html", "--json")
    assert json.loads(ran.stdout)["rows_evaluated"] == 58
    (tmp_path / "t.csv").write_text("x,y\n" + "\n".join(lines[10:]) + "\n11,\n")
    ran = run("fit", tmp_path / "t.csv", "--target", "y", "--model", tmp_path / "n", *QUICK, *memory)
    assert "Note: 1 row without a target is left out.\n" in ran.stderr
    assert "is infinite" not in ran.stderr


def test_columns_of_levels_and_of_kept_columns_have_names_of_their_own(folder, tmp_path):
    levels = "0.5,0.9999999,0.99999999"
    made = run("fit", "flat2.csv", "--target", "y", "--model", tmp_path / "m", "--components", 5, "--quantiles", levels)
    assert made.returncode == 0, made.stderr
    run("predict", tmp_path / "m", "flat2.csv", "--out", tmp_path / "p.csv", "--keep", "x,y,x")
    assert read_table(tmp_path / "p.csv").column_names == ["x", "y", "q0.5", "q0.9999999", "q0.99999999"]


def test_a_page_that_cannot_be_written_leaves_the_model(folder, tmp_path):
    """As on a disk that is full after the model."""
    more = "--target", "price", "--components", 5, "--quantiles", "0.1,0.9"
    assert run("fit", "sales.csv", "--model", tmp_path / "first", *more).returncode == 0
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "first").stat().st_size + 2000, hard))
    try:
        ran = run("fit", "sales.csv", "--model", tmp_path / "m", *more, "--report", tmp_path / "r.html")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    command = f"quernel report {tmp_path / 'm'} sales.csv --out {tmp_path / 'r.html'}"
    refused(ran, f"The model was saved to {tmp_path / 'm'}", "File too large", command)
    assert not (tmp_path / "r.html").exists()
    assert run(*command.split()[1:]).returncode == 0


@pytest.mark.parametrize("memory", [(), ("--max-memory", "1kB")], ids=["whole", "in parts"])
def test_numbers_that_are_names_keep_their_zeros(folder, tmp_path, memory):
    lines = [f"{('01234', '1234', '99999')[i % 3]},{i % 2},{i % 3 + i / 100}" for i in range(120)]
    (tmp_path / "t.csv").write_text("zip,x,y\n" + "\n".join(lines) + "\n")
    more = "--target", "y", "--model", tmp_path / "m", *QUICK, *memory, "--categorical", "zip", "--json"
    report = json.loads(run("fit", tmp_path / "t.csv", *more).stdout)
    assert report["columns"] == {"zip": "text", "x": "number"}
    assert quernel.load(tmp_path / "m").encoder.columns_[0].categories == ("01234", "1234", "99999")
    assert run("predict", tmp_path / "m", tmp_path / "t.csv", "--out", tmp_path / "p.csv").returncode == 0
    middle = read_table(tmp_path / "p.csv")["q0.5"].to_numpy()
    assert middle[1] - middle[3] > 0.5  # 1234 is not 01234
    pq.write_table(read_table(tmp_path / "t.csv"), tmp_path / "t.parquet")  # where both are the same number
    ran = run("predict", tmp_path / "m", tmp_path / "t.parquet", "--out", tmp_path / "no.csv")
    refused(ran, "'zip' holds float64, but the model was fitted to texts")


def test_a_model_of_csv_takes_the_same_rows_from_parquet(folder, tmp_path):
    lines = [f"{'true' if i % 3 else 'false'},{i % 5},{i % 24:02}:30:00,{i % 7}" for i in range(120)]
    (tmp_path / "t.csv").write_text("flag,n,hour,y\n" + "\n".join(lines) + "\n")
    made = run("fit", tmp_path / "t.csv", "--target", "y", "--model", tmp_path / "m", *QUICK, "--json")
    assert json.loads(made.stdout)["columns"] == {"flag": "boolean", "n": "number", "hour": "time"}
    rows = [line.split(",") for line in lines]
    columns = zip(("flag", "n", "hour"), list(zip(*rows, strict=True))[:3], strict=True)
    pq.write_table(
        pa.table({name: pa.array(cells, pa.large_string()) for name, cells in columns}), tmp_path / "t.parquet"
    )
    for ending in ("csv", "parquet"):
        ran = run("predict", tmp_path / "m", tmp_path / f"t.{ending}", "--out", tmp_path / f"{ending}.csv")
        assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "csv.csv").read_text() == (tmp_path / "parquet.csv").read_text()
    page = run(
        "fit", tmp_path / "t.csv", "--target", "y", "--model", tmp_path / "n", *QUICK, "--report", tmp_path / "r.html"
    )
    assert page.returncode == 0, page.stderr
    assert "00:30 to 23:30" in (tmp_path / "r.html").read_text()


def test_names_with_brackets_are_names(folder, tmp_path):
    """The console reads [m/s] as mark-up of its own unless it is told not to."""
    names, model = ("speed [m/s]", "place [/x]", "power [kw]"), tmp_path / "m [b].quernel"
    lines = [f"{i % 7},{'ab'[i % 2]}[/],{i % 11}" for i in range(40)]
    (tmp_path / "units [x].csv").write_text("\n".join([",".join(names), *lines]) + "\n")
    options = "--target", names[2], "--model", model, *QUICK, "--quantiles", "0.5", "--components", "5"
    for command in (("fit",), ("tune", "--alphas", "1e-3", "--folds", "2", "--force")):
        ran = run(command[0], tmp_path / "units [x].csv", *options, *command[1:])
        assert ran.returncode == 0, ran.stderr
        assert "m[b].quernel" in "".join(ran.stdout.split())  # lines may break at the blank
        assert "m[b].quernel'NEW_DATA" in "".join(ran.stderr.split())  # quoted, to be pasted
        if command == ("fit",):
            for word in (*names[:2], "a[/], b[/]", "'power [kw]'"):
                assert word in ran.stdout, word
    ran = run("predict", model, tmp_path / "units [x].csv", "--out", tmp_path / "p [kw].csv")
    assert ran.returncode == 0, ran.stderr
    assert "'power [kw]'" in " ".join(ran.stdout.split())
    assert "p[kw].csv" in "".join(ran.stdout.split())


def test_of_many_columns_those_that_stay_what_they_are_share_a_line(folder, tmp_path):
    rng = np.random.default_rng(0)
    table = pa.table({f"x{k}": rng.random(40) for k in range(40)} | {"word": ["a", "b"] * 20, "y": rng.random(40)})
    pq.write_table(table, tmp_path / "many.parquet")
    common = tmp_path / "many.parquet", "--target", "y", "--force", "--model", tmp_path / "m", *QUICK
    ran = run("fit", *common)
    assert ran.returncode == 0, ran.stderr
    assert "40 other columns" in ran.stdout
    assert "word" in ran.stdout
    assert "x7" not in ran.stdout
    assert "x7" in run("fit", *common, "--columns", "x1,x7,word").stdout


@pytest.mark.parametrize("name", ["csv", "csv.gz", "csv.zst", "tsv", "feather", "arrow"])
def test_all_formats_give_the_same_model_and_the_same_predictions(folder, tmp_path, name):
    """CSV is read again with other words for the same things, batches are others: the numbers must not notice."""
    ran = run("fit", f"sales.{name}", "--target", "price", "--model", tmp_path / "m.quernel", *QUICK, "--json")
    assert ran.returncode == 0, ran.stderr
    summary = json.loads(ran.stdout)
    kinds = {"size": "number", "age": "number", "place": "text", "garden": "boolean", "sold": "date"}
    assert summary["columns"] == kinds
    assert max(summary["duality_gap"]) <= 1e-6
    model = quernel.load(folder / "m.quernel")
    assert quernel.load(tmp_path / "m.quernel").encoder.columns_ == model.encoder.columns_
    ran = run("predict", tmp_path / "m.quernel", f"sales.{name}", "--out", tmp_path / "p.parquet")
    assert ran.returncode == 0, ran.stderr
    found = pq.read_table(tmp_path / "p.parquet")
    assert found.column_names == ["q0.1", "q0.5", "q0.9"]
    np.testing.assert_allclose(np.column_stack(found.columns), model.predict(sales()), rtol=1e-9)


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "tsv", "parquet", "feather"])
def test_predictions_come_piece_by_piece_in_the_format_of_the_ending(folder, tmp_path, ending, monkeypatch):
    monkeypatch.setattr(sources, "BLOCK_ROWS", 64)
    out = tmp_path / f"p.{ending}"
    for source in ("sales.parquet", "sales.csv"):
        ran = run("predict", "m.quernel", source, "--out", out, "--keep", "age,place", "--force", "--json")
        assert ran.returncode == 0, ran.stderr
        report = json.loads(ran.stdout)
        assert report["rows"] == 400
        table = read_table(out)
        assert table.column_names == ["age", "place", "q0.1", "q0.5", "q0.9"]
        np.testing.assert_allclose(
            np.column_stack(table.columns[2:]), quernel.load(folder / "m.quernel").predict(sales()), rtol=1e-9
        )
        ages = table["age"].cast(pa.float64())  # of a CSV file they are text
        np.testing.assert_array_equal(ages.to_numpy(), sales()["age"].to_numpy())


def test_pieces_are_pieces(folder, monkeypatch):
    """So that the test above reads more than one."""
    monkeypatch.setattr(sources, "BLOCK_ROWS", 64)
    for name in ("sales.parquet", "sales.csv"):
        with open_table(folder / name) as table:
            assert len(list(table.iter_batches(["age"]))) > 3


def test_other_levels_columns_weights_and_logarithms(folder, tmp_path):
    options = "--columns", "size,place,sold", "--exclude", "sold", "--log-target", "--weights", "age", *QUICK
    assert run("fit", "sales.csv", "--target", "price", "--model", tmp_path / "m", *options).returncode == 0
    model = quernel.load(tmp_path / "m")
    assert (model.encoder.inputs, model.log_target) == (["size", "place"], True)
    assert (model.predict(sales()) > 0).all()
    table = sales()
    there = table.filter(table["price"].is_valid())
    by_hand = KernelQuantileRegressor([0.1, 0.5, 0.9], n_components=40, random_state=0)
    by_hand.fit(
        model.encoder.transform(there), np.log(there["price"].to_numpy()), sample_weight=there["age"].to_numpy()
    )
    np.testing.assert_allclose(model.predict(table), np.exp(by_hand.predict(model.encoder.transform(table))), rtol=1e-9)
    ran = run("predict", tmp_path / "m", "sales.csv", "--out", tmp_path / "p.csv", "--quantiles", "0.3")
    assert ran.returncode == 0, ran.stderr
    found = read_table(tmp_path / "p.csv")["q0.3"].to_numpy()
    np.testing.assert_allclose(found, model.predict(table, quantiles=0.3), rtol=1e-9)


def test_learned_bandwidths_and_joint_levels(folder, tmp_path):
    options = "--columns", "size,age", "--bandwidth", "learned", "--noncrossing", "joint", *QUICK, "--json"
    ran = run("fit", "sales.csv", "--target", "price", "--model", tmp_path / "m", *options)
    assert ran.returncode == 0, ran.stderr
    model = quernel.load(tmp_path / "m").model
    assert (model.bandwidth, model.noncrossing) == ("learned", "joint")
    assert model.crossing_rate_ == 0
    assert model.bandwidth_choice_.rounds
    assert json.loads(ran.stdout)["bandwidth"] == list(model.bandwidth_choice_.bandwidth)


def test_tails_reach_beyond_the_fitted_levels(folder, tmp_path):
    x = np.random.default_rng(0).uniform(0, 1, (600, 2))
    table = pa.table({"x": x[:, 0], "y": -np.log(x[:, 1])})
    csv.write_csv(table, tmp_path / "t.csv")
    fit = "fit", tmp_path / "t.csv", "--target", "y", "--model", tmp_path / "m", "--bandwidth", "auto", *QUICK
    ran = run(*fit, "--tails", "pareto")
    assert ran.returncode == 0, ran.stderr
    ran = run("predict", tmp_path / "m", tmp_path / "t.csv", "--out", tmp_path / "p.csv", "--quantiles", "0.5,0.999")
    assert ran.returncode == 0, ran.stderr
    found, model = read_table(tmp_path / "p.csv")["q0.999"].to_numpy(), quernel.load(tmp_path / "m")
    np.testing.assert_allclose(found, model.predict(table, quantiles=0.999), rtol=1e-9)
    assert np.all(found > model.predict(table, quantiles=0.9))
    refused = run(*fit, "--tails", "normal", "--force")
    assert "--tails must be one of pareto, none" in refused.stderr
    options = FitOptions(tails="pareto")
    assert options.choose_estimator([]).name == "tabular", "which has them, too"
    assert options.make_estimator("tabular", TrainingOptions()).tails == "pareto"


def test_shapes_by_the_names_of_columns(folder, tmp_path):
    options = "--columns", "place,size", "--monotone", "size=-1", "--lower", "-1e6", *QUICK
    ran = run("fit", "sales.csv", "--target", "price", "--model", tmp_path / "m", *options)
    assert ran.returncode == 0, ran.stderr
    model = quernel.load(tmp_path / "m")
    place = model.encoder.names.index("size")
    assert (model.model.monotone, model.model.lower) == ({place: -1}, -1e6)
    assert set(model.model.shape_violation_) == {f"monotone in column {place}", "lower"}


def test_shapes_are_those_of_the_tabular_estimator_unless_the_kernel_is_asked_for(folder, tmp_path):
    options = "--columns", "place,size", "--monotone", "size=-1", "--json"
    ran = run("fit", "sales.csv", "--target", "price", "--model", tmp_path / "m", *options)
    assert ran.returncode == 0, ran.stderr
    summary = json.loads(ran.stdout)
    assert (summary["estimator"], summary["estimator_reason"]) == ("tabular", "the default")
    assert len(summary["duality_gap"]) == 5
    model = quernel.load(tmp_path / "m")
    size = model.encoder.names.index("size")
    assert set(model.model.shape_violation_) == {f"monotone in column {size}"}
    shaped = FitOptions(monotone="size=-1", lower=0.0)
    assert shaped.choose_for_streamed(shaped.choose_estimator([])).name == "tabular"
    assert FitOptions(monotone="size=-1", alpha=1.0).choose_estimator([]).name == "kernel"
    assert FitOptions(monotone="size=-1", estimator="kernel").choose_estimator([]).name == "kernel"
    with pytest.raises(ValueError, match="--lower and --upper are for targets as they are"):
        shaped.make_estimator("tabular", TrainingOptions(log_target=True))


def test_calibrated_intervals_are_further_columns(folder, tmp_path):
    options = "--columns", "size,place", "--log-target", "--conformal", *QUICK
    ran = run("fit", "sales.csv", "--target", "price", "--model", tmp_path / "m", *options)
    assert ran.returncode == 0, ran.stderr
    assert "fitted to 293 rows" in " ".join(ran.stdout.split())
    assert "80% interval calibrated on the other 98 rows" in " ".join(ran.stdout.split())
    model = quernel.load(tmp_path / "m")
    ran = run("predict", tmp_path / "m", "sales.csv", "--out", tmp_path / "p.csv", "--quantiles", "0.5")
    assert ran.returncode == 0, ran.stderr
    assert "1 quantile of 'price' and its 80% interval" in " ".join(ran.stdout.split())
    found = read_table(tmp_path / "p.csv")
    assert found.column_names == ["q0.5", "lower", "upper"]
    table = sales()
    there = table.filter(table["price"].is_valid())
    X, y = model.encoder.transform(there), np.log(there["price"].to_numpy())
    base = KernelQuantileRegressor([0.1, 0.5, 0.9], n_components=40, random_state=0)
    by_hand = ConformalQuantileRegressor(base, 0.8, random_state=0).fit(X, y)
    expected = np.exp(by_hand.predict_interval(model.encoder.transform(table)))
    np.testing.assert_allclose(np.column_stack(found.columns[1:]), expected, rtol=1e-9)
    np.testing.assert_allclose(model.predict_interval(table), expected, rtol=1e-9)
    raw = np.exp(by_hand.estimators_[0].predict_interval(X, coverage=0.8))
    assert np.abs(raw - by_hand.predict_interval(X)).max() > 0  # calibration moved something


def test_the_last_rows_calibrate_in_order_of_time(folder, tmp_path):
    options = "--columns", "size", "--conformal", "--time-ordered", "--calibration-share", "0.3", "--coverage", "0.6"
    ran = run("fit", "sales.csv", "--target", "price", "--model", tmp_path / "m", *options, *QUICK, "--json")
    assert ran.returncode == 0, ran.stderr
    report, interval = json.loads(ran.stdout), quernel.load(tmp_path / "m").interval
    assert (interval.time_ordered, interval.calibration_size, interval.coverage) == (True, 0.3, 0.6)
    assert (report["coverage"], report["calibration_rows"]) == (0.6, interval.n_calibration_)
    assert report["calibration_rows"] == round(0.3 * report["rows"])


def test_intervals_that_cover_around_each_row(folder, tmp_path):
    options = "--columns", "size,place", "--conformal", "--conditional", "--calibration-share", "0.7", *QUICK
    ran = run("fit", "sales.csv", "--target", "price", "--model", tmp_path / "m", *options)
    assert ran.returncode == 0, ran.stderr
    model = quernel.load(tmp_path / "m")
    assert model.interval.conditional == "kernel"
    assert run("predict", tmp_path / "m", "sales.csv", "--out", tmp_path / "p.parquet").returncode == 0
    found = pq.read_table(tmp_path / "p.parquet").select(["lower", "upper"])
    np.testing.assert_allclose(np.column_stack(found.columns), model.predict_interval(sales()), rtol=1e-9)


TUNE = ("tune", "sales.csv", "--target", "price", "--alphas", "1e-9,1e-5", "--columns", "size,place", *QUICK)


def test_tune_prints_the_path_and_keeps_the_best(folder, tmp_path):
    ran = run(*TUNE, "--folds", "3", "--model", tmp_path / "m")
    assert ran.returncode == 0, ran.stderr
    text = " ".join(ran.stdout.split())
    for word in ("* is chosen", "0.5 x auto", "2 x auto", "1e-09", "6 trials by 3 splits", "certified gap"):
        assert word in text, word
    model = quernel.load(tmp_path / "m").model
    table = sales()
    there = table.filter(table["price"].is_valid())
    by_hand = KernelQuantileRegressorCV(
        [0.1, 0.5, 0.9], alphas=[1e-9, 1e-5], cv=3, n_components=40, random_state=0
    ).fit(quernel.load(tmp_path / "m").encoder.transform(there), there["price"].to_numpy())
    np.testing.assert_array_equal(model.cv_results_["mean_test_score"], by_hand.cv_results_["mean_test_score"])
    assert f"* {-by_hand.best_score_:.5g}" in text
    assert run("predict", tmp_path / "m", "sales.csv", "--out", tmp_path / "p.csv").returncode == 0


def test_tune_tells_when_the_best_is_an_end_of_what_was_tried(folder):
    common = ("tune", "pairs.csv", "--target", "y", "--validation", "0.3", "--components", "20", "--quantiles", "0.5")
    ran = run(*common, "--alphas", "1e-9,1e3,1e6", "--bandwidths", "learned")
    assert ran.returncode == 0, ran.stderr
    table = [line.split("│")[2:-1] for line in ran.stdout.splitlines() if line.startswith("│")]
    (row,) = [k for k, line in enumerate(table) if "*" in "".join(line)]
    (column,) = [k for k, cell in enumerate(table[row]) if "*" in cell]
    for name, place, ends in (("alpha", row, ("largest", "smallest")), ("bandwidth", column, ("smallest", "largest"))):
        end_reached = {0: ends[0], 2: ends[1]}.get(place)
        assert [end for end in ends if f"The {end} {name} of those tried was chosen" in ran.stderr] == [
            end_reached
        ] * bool(end_reached)
    assert "of those tried" in ran.stderr
    assert '"learned"' not in ran.stderr  # it was used
    machine = run(*common, "--alphas", "1e-9,1e3,1e6", "--bandwidths", "learned", "--json")
    edges = [sentence for sentence in json.loads(machine.stdout)["notes"] if "of those tried" in sentence]
    for text in (ran.stderr, machine.stderr):
        assert [line.removeprefix("Note: ") for line in text.splitlines() if "of those tried" in line] == edges
    inside = run(*common, "--alphas", "1e-9,1e3", "--bandwidths", "1")
    assert inside.returncode == 0
    assert "of those tried" not in inside.stderr


def test_tune_for_machines_without_a_file(folder, tmp_path):
    before = snapshot(folder)
    ran = run(*TUNE, "--bandwidths", "0.7,auto", "--validation", "0.3", "--json")
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert (report["splits"], report["model"], len(report["path"])) == (1, None, 4)
    best = min(report["path"], key=lambda one: one["loss"])
    assert (report["alpha"], report["bandwidth"], report["loss"]) == (best["alpha"], best["bandwidth"], best["loss"])
    assert [one["alpha"] for one in report["path"]] == [1e-9, 1e-5] * 2
    assert report["path"][0]["bandwidth"] == 0.7
    assert snapshot(folder) == before


def test_tune_in_order_of_time_and_by_groups(folder, tmp_path):
    """Rows of one group stay together: with two groups there are no three folds, with three there are."""
    common = ("tune", "pairs.csv", "--target", "y", "--alphas", "1e-3", "--components", "10", "--json")
    ran = run(*common, "--time-ordered", "--folds", "2", "--bandwidths", "1")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["splits"] == 2
    ran = run(*common, "--time-ordered", "--validation", "0.25", "--bandwidths", "1", "--model", tmp_path / "m")
    assert ran.returncode == 0, ran.stderr
    ((train, test),) = quernel.load(tmp_path / "m").model.cv.split(range(60))
    assert (train.tolist(), test.tolist()) == (list(range(45)), list(range(45, 60)))
    ran = run(*common, "--groups", "g", "--folds", "3", "--bandwidths", "1", "--model", tmp_path / "n")
    assert ran.returncode == 0, ran.stderr
    assert quernel.load(tmp_path / "n").encoder.inputs == ["x"]
    refused(run(*common, "--groups", "g", "--folds", "4", "--bandwidths", "1"), "'g' has 3 groups", "--folds 4 needs")


def test_rows_outside_the_training_range_are_counted(folder, tmp_path):
    far = sales(50, seed=3).set_column(1, "age", pa.array([200.0] * 7 + [3.0] * 43))
    pq.write_table(far, tmp_path / "far.parquet")
    ran = run("predict", "m.quernel", tmp_path / "far.parquet", "--out", tmp_path / "p.csv", "--json")
    assert ran.returncode == 0, ran.stderr
    outside = json.loads(ran.stdout)["rows_outside"]
    model = quernel.load(folder / "m.quernel")
    assert outside == model.model.is_extrapolation(model.encoder.transform(far)).sum() >= 7
    assert f"{outside} of 50 rows are outside" in ran.stderr


def test_a_file_without_rows_gives_a_file_without_rows(folder, tmp_path):
    ran = run("predict", "m.quernel", "header.csv", "--out", tmp_path / "p.csv", "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["rows"] == 0
    assert read_table(tmp_path / "p.csv").column_names == ["q0.1", "q0.5", "q0.9"]


FIT = ("fit", "sales.csv", "--target", "price", "--model", "new.quernel", *QUICK)
PREDICT = ("predict", "m.quernel", "sales.csv", "--out", "new.csv")


def fitting(data, target="y", *more):
    return ("fit", data, "--target", target, "--model", "new.quernel", *QUICK, *more)


def tuning(data="sales.csv", target="price", *more):
    return ("tune", data, "--target", target, "--model", "new.quernel", *QUICK, *more)


BROKEN = {
    "tuning without the target": (tuning(target="prise"), ["'prise'", "Did you mean 'price'?"]),
    "tuning by groups that are missing": (tuning("sales.csv", "price", "--groups", "plaec"), ["'plaec'", "'place'?"]),
    "groups with gaps": (tuning("loners.csv", "y", "--groups", "g"), ["'g' is empty in 20 of 60 rows"]),
    "folds and a share": (tuning("sales.csv", "price", "--folds", "3", "--validation", "0.2"), ["Give one of them"]),
    "one fold": (tuning("sales.csv", "price", "--folds", "1"), ["--folds must be 2 or more; got 1"]),
    "share above 1": (tuning("sales.csv", "price", "--validation", "20"), ["--validation must be a fraction", "20"]),
    "groups in order of time": (
        tuning("sales.csv", "price", "--groups", "place", "--time-ordered"),
        ["--groups and --time-ordered"],
    ),
    "ridge weights that are no numbers": (tuning("sales.csv", "price", "--alphas", "low"), ["--alphas", "'low'"]),
    "a ridge weight of 0": (tuning("sales.csv", "price", "--alphas", "0,1"), ["alphas must be", "positive"]),
    "unknown bandwidths": (tuning("sales.csv", "price", "--bandwidths", "wide"), ["'wide'", "'learned'"]),
    "one standard error of one split": (
        tuning("sales.csv", "price", "--one-standard-error", "--validation", "0.2"),
        ["--one-standard-error needs at least two splits", "--validation 0.2 gives one"],
    ),
    "tuning into an existing model": ((*tuning()[:5], "damaged.quernel"), ["damaged.quernel exists already"]),
    "tuning an empty file": (tuning("empty.csv", "y"), ["empty.csv cannot be read as CSV"]),
    "unknown bandwidth": ((*FIT, "--bandwidth", "narrow"), ["bandwidth", "'narrow'", "learned"]),
    "negative bandwidth": ((*FIT, "--bandwidth", "-2"), ["bandwidth", "-2"]),
    "a column without a direction": (
        (*FIT, "--monotone", "size"),
        ["--monotone must be columns with 1 or -1", "'size'"],
    ),
    "a shape of text": ((*FIT, "--monotone", "place=1"), ["--monotone: column 'place' is text"]),
    "unknown way not to cross": (
        (*FIT, "--noncrossing", "never"),
        ["--noncrossing must be one of rearrange, joint, none", "'never'"],
    ),
    "too few groups for the folds": (
        tuning("pairs.csv", "y", "--groups", "g"),
        ["'g' has 3 groups, but --folds 5 needs at least 5"],
    ),
    "one group": (
        tuning("pairs.csv", "y", "--groups", "one", "--validation", "0.3"),
        ["'one' has 1 group, but --validation needs at least 2"],
    ),
    "weights with gaps": (
        fitting("gappy.csv", "y", "--weights", "w"),
        ["weight column 'w' has entries that are missing, infinite or negative"],
    ),
    "data as a checkpoint": (
        fitting("flat2.csv", "y", "--checkpoint", "pairs.csv"),
        ["--checkpoint pairs.csv is a file, but not a checkpoint", "another name"],
    ),
    "a model as a checkpoint": (
        fitting("flat2.csv", "y", "--checkpoint", "m.quernel"),
        ["--checkpoint m.quernel is a file, but not a checkpoint of a fit. Choose another"],
    ),
    "a folder as a checkpoint": (fitting("flat2.csv", "y", "--checkpoint", "."), ["is a folder"]),
    "a checkpoint in no folder": (
        fitting("flat2.csv", "y", "--checkpoint", "nowhere/c"),
        ["The folder nowhere is missing"],
    ),
    "an archive as a checkpoint": (
        fitting("flat2.csv", "y", "--checkpoint", "some.zip"),
        ["--checkpoint some.zip is a file, but not a checkpoint of a fit. Choose another"],
    ),
    "coverage of nothing": ((*FIT, "--coverage", "0.9"), ["--coverage", "Add --conformal"]),
    "conditional of nothing": ((*FIT, "--conditional"), ["--conditional", "Add --conformal"]),
    "too few rows for a function of them": (
        (*FIT, "--conformal", "--conditional", "--calibration-share", "0.1"),
        ["--conditional needs at least 100 calibration rows", "leave --conditional out"],
    ),
    "coverage wider than the levels": ((*FIT, "--conformal", "--coverage", "0.9"), ["0.05 and 0.95", "0.1 to 0.9"]),
    "coverage above 1": ((*FIT, "--conformal", "--coverage", "90"), ["coverage", "90"]),
    "an interval on one side": (
        (*FIT, "--conformal", "--quantiles", "0.6,0.9"),
        ["--conformal needs levels on either side of 0.5", "0.6 to 0.9"],
    ),
    "calibration with all rows": ((*FIT, "--conformal", "--calibration-share", "1.5"), ["share between 0 and 1"]),
    "too few rows to calibrate": (
        fitting("flat2.csv", "y", "--conformal", "--quantiles", "0.01,0.99"),
        ["0.98", "49 calibration rows", "there are 8", "more of them (--calibration-share), or"],
    ),
    "column with the name of an end": (
        ("predict", "interval.quernel", "ends.csv", "--out", "new.csv", "--keep", "lower"),
        ["'lower' cannot be kept", "Rename it"],
    ),
    "missing target column": (fitting("sales.csv", "prise"), ["'prise'", "Did you mean 'price'?"]),
    "missing input column": ((*FIT, "--columns", "size,aeg"), ["'aeg'", "Did you mean 'age'?"]),
    "no input column": ((*FIT, "--columns", " ,"), ["--columns names no column", "leave it out"]),
    "comma in a name": (
        fitting("commas.csv", "y", "--columns", "size, m2"),
        ["'size'", "Did you mean 'size, m2'?"],
    ),
    "quotes that do not end": ((*FIT, "--exclude", '"size'), ["double quotes", "size"]),
    "gaps by words in Parquet": (fitting("sales.parquet", "price", "--missing", "?"), ["--missing is for CSV files"]),
    "text in a target": (fitting("marks.csv", "y"), ["'y' holds string", "--missing"]),
    "missing category": ((*FIT, "--categorical", "plaec"), ["'plaec'", "for categorical", "'place'?"]),
    "target as a category": ((*FIT, "--categorical", "price"), ["--categorical names the target 'price'"]),
    "category that is no input": ((*FIT, "--categorical", "age", "--exclude", "age"), ["'age'", "for categorical"]),
    "missing excluded column": ((*FIT, "--exclude", "Size"), ["'Size'", "Did you mean 'size'?"]),
    "missing weights": ((*FIT, "--weights", "xyzzy"), ["'xyzzy'", "Its columns: size, age"]),
    "missing kept column": ((*PREDICT, "--keep", "id,age"), ["'id'", "to keep"]),
    "text target": (fitting("sales.csv", "place"), ["'place'", "holds string, not numbers"]),
    "target without values": (fitting("lost.csv"), ["'y' is missing in all rows"]),
    "logarithm of a negative target": (fitting("negative.csv", "y", "--log-target"), ["'y' is -3 in a row", "-3"]),
    "negative weights": (
        fitting("negative.csv", "y", "--weights", "w"),
        ["weight column 'w' has entries that are missing, infinite or negative"],
    ),
    "empty file": (fitting("empty.csv"), ["empty.csv cannot be read as CSV: it is empty"]),
    "header only": (fitting("header.csv", "price"), ["header.csv has no rows: there is nothing to learn from"]),
    "tuning without rows": (tuning("header.csv"), ["header.csv has no rows"]),
    "too few rows": (fitting("few.csv"), ["2 rows", "20"]),
    "one value of the target": (fitting("same.csv"), ["the same in all 30 rows of same.csv", "Choose another column"]),
    "one value, read in parts": (
        fitting("same.parquet", "y", "--max-memory", "100B"),
        ["the same in all 30 rows of same.parquet"],
    ),
    "tuning one value": (tuning("same.csv", "y"), ["the same in all 30 rows"]),
    "one file for model and page": (
        fitting("flat2.csv", "y", "--model", "new.html", "--report", "./new.html"),
        ["--model and --report name the same file"],
    ),
    "names given twice": (fitting("twice.csv"), ["twice.csv has more than one column named 'x'"]),
    "ragged lines": (
        fitting("ragged.csv"),
        ["ragged.csv cannot be read as CSV: CSV parse error: Row #3: Expected 2 columns, got 3"],
    ),
    "torn Parquet": (fitting("torn.parquet", "price"), ["torn.parquet cannot be read"]),
    "torn gzip": (fitting("torn.csv.gz", "price"), ["torn.csv.gz cannot be read as CSV"]),
    "noise": (fitting("noise.feather", "price"), ["noise.feather cannot be read as Arrow"]),
    "no file": (fitting("nowhere.csv"), ["nowhere.csv is not a file"]),
    "unknown format": (fitting("notes.xls"), ["notes.xls must end in one of", ".parquet"]),
    "no usable columns": (fitting("flat.csv"), ["no usable input column", "'x' is left out: it is 1 everywhere"]),
    "all columns excluded": (fitting("few.csv", "y", "--exclude", "x"), ["no usable input column"]),
    "level out of range": ((*FIT, "--quantiles", "0.5,95"), ["95", "between 0 and 1"]),
    "levels that are no numbers": ((*FIT, "--quantiles", "low,high"), ["--quantiles must be numbers", "low,high"]),
    "unknown kernel": ((*FIT, "--kernel", "magic"), ["'magic'", "gaussian", "'auto'."]),
    "features that are no number": ((*FIT, "--components", "many"), ["--components", "'many'"]),
    "negative alpha": ((*FIT, "--alpha", "-1"), ["alpha must be a positive", "-1"]),
    "existing model": ((*FIT[:5], "damaged.quernel"), ["damaged.quernel exists already", "--force"]),
    "folder of the model missing": ((*FIT[:5], "no/m.quernel"), ["folder no is missing"]),
    "existing output": ((*PREDICT[:4], "old.csv"), ["old.csv exists already", "--force"]),
    "output of unknown format": ((*PREDICT[:4], "new.xls"), ["new.xls must end in one of"]),
    "model of another schema": (
        ("predict", "m.quernel", "other.csv", "--out", "new.csv"),
        ["'size' is missing"],
    ),
    "text where numbers were": (
        ("predict", "m.quernel", "words.csv", "--out", "new.csv"),
        ["words.csv", "Column 'size' holds strings such as 'big', but the model was fitted to numbers"],
    ),
    "corrupt model": (("predict", "damaged.quernel", "sales.csv", "--out", "new.csv"), ["damaged", "checksum"]),
    "foreign model": (("predict", "sales.parquet", "sales.csv", "--out", "new.csv"), ["not a quernel model file"]),
    "model of arrays": (("predict", "arrays.quernel", "sales.csv", "--out", "new.csv"), ["of arrays", "quernel fit"]),
    "model missing": (("predict", "no.quernel", "sales.csv", "--out", "new.csv"), ["no.quernel is not a file"]),
    "level outside the fitted ones": ((*PREDICT, "--quantiles", "0.99"), ["0.99", "outside the fitted range"]),
    "torn data": (("predict", "m.quernel", "torn.csv.gz", "--out", "new.csv"), ["torn.csv.gz cannot be read as CSV"]),
}


def snapshot(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


PROGRESS = ("Note:", "Fitting", "Searching", "Learning", "Evaluating")


def refused(ran, *messages):
    assert ran.returncode == 1, ran.stdout
    assert ran.stdout == ""
    lines = [line for line in ran.stderr.strip().splitlines() if not line.startswith(PROGRESS)]
    assert len(lines) == 1, ran.stderr
    assert lines[0].startswith("Error: ")
    assert "Traceback" not in ran.stderr
    for message in messages:
        assert message in lines[0], lines[0]


@pytest.mark.parametrize("name", BROKEN)
def test_broken_input_gives_one_line_and_leaves_nothing_behind(folder, name):
    arguments, messages = BROKEN[name]
    before = snapshot(folder)
    refused(run(*arguments), *messages)
    assert snapshot(folder) == before


@pytest.mark.parametrize(
    "arguments",
    [
        FIT,
        (*TUNE, "--folds", "2", "--model", "new.quernel"),
        PREDICT,
        (*PREDICT[:4], "new.parquet"),
        (*PREDICT[:4], "old.csv", "--force"),
        ("report", "m.quernel", "sales.csv", "--out", "new.html"),
        ("plan", "--rows", "1000", "--r", "0.5", "--gamma", "0.5", "--plot", "new.png"),
    ],
)
def test_a_full_disk_gives_one_line_and_leaves_nothing_behind(folder, arguments):
    """No file may grow beyond 1,000 bytes: writing fails half-way, as on a full disk."""
    before = snapshot(folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        copied = run(*arguments)
        ran = run(*("sales.parquet" if word == "sales.csv" else word for word in arguments))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    if "sales.csv" in arguments:  # which is copied first
        refused(copied, "sales.csv cannot be read as CSV", "File too large", "TMPDIR")
    refused(ran, "could not be written", "File too large")
    assert snapshot(folder) == before


@pytest.mark.parametrize("arguments", [FIT, (*FIT, "--conformal"), (*TUNE, "--model", "new.quernel"), PREDICT])
def test_the_same_without_the_fault_succeeds(folder, tmp_path, arguments):
    """So that the refusals above are due to what is broken."""
    arguments = [str(tmp_path / word) if str(word).startswith("new.") else word for word in arguments]
    assert run(*arguments).returncode == 0


def test_bandwidths_are_learned_unless_others_are_given(tmp_path):
    rng = np.random.default_rng(0)
    a, b = rng.random(60), rng.random(60)
    csv.write_csv(pa.table({"a": a, "b": b, "y": a + rng.random(60)}), tmp_path / "d.csv")
    common = "fit", tmp_path / "d.csv", "--target", "y", "--force", "--model", tmp_path / "m.quernel", *QUICK
    for given, expected in (((), "learned"), (("--bandwidth", "auto"), "auto"), (("--bandwidth", "1"), 1.0)):
        ran = run(*common, *given)
        assert ran.returncode == 0, ran.stderr
        assert quernel.load(tmp_path / "m.quernel").model.bandwidth == expected


def test_the_logarithm_is_recommended_for_positive_targets_with_a_long_tail(tmp_path):
    rng = np.random.default_rng(0)
    a = rng.random(200)
    targets = {
        "long": np.exp(rng.standard_normal(200)),
        "longer": np.exp(np.exp(rng.standard_normal(200))),
        "even": 5 + rng.random(200),
        "signed": rng.standard_cauchy(200),
    }
    csv.write_csv(pa.table({"a": a, **targets}), tmp_path / "d.csv")
    for target, more, recommended in (
        ("long", (), True),
        ("long", ("--log-target",), False),
        ("longer", ("--log-target",), False),  # whose logarithm has a long tail, too
        ("even", (), False),
        ("signed", (), False),
    ):
        common = "fit", tmp_path / "d.csv", "--columns", "a", "--force", "--model", tmp_path / "m.quernel", *QUICK
        ran = run(*common, "--target", target, *more)
        assert ran.returncode == 0, ran.stderr
        assert ("try --log-target" in " ".join(ran.stderr.split())) == recommended
