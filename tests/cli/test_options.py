"""Options as fields of dataclasses: how they become options of a command, and how errors name them."""

from dataclasses import dataclass, fields
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from quernel.cli.options import (
    PARAMETERS,
    FitOptions,
    SearchOptions,
    TrainingOptions,
    expand_options,
    option,
    translate_parameters,
)
from quernel.estimators import KernelQuantileRegressor
from quernel.estimators.quantile_cv import KernelQuantileRegressorCV


@dataclass(frozen=True)
class Toy:
    first_size: int = option(3, "How many.", min=1)
    loud: bool = option(False, "Whether to shout.")
    name: str | None = option(None, "Of whom.")


@pytest.fixture
def called():
    calls = []

    @expand_options
    def command(where: Annotated[str, typer.Argument()], toy: Toy, times: Annotated[int, typer.Option()] = 1) -> None:
        """Say what it does."""
        calls.append((where, toy, times))

    app = typer.Typer()
    app.command()(command)

    def run(*arguments):
        ran = CliRunner().invoke(app, list(arguments))
        return ran, calls

    return run


def test_a_dataclass_of_options_arrives_as_one_value(called):
    _, calls = called("here")
    called("there", "--loud", "--first-size", "7", "--times", "2", "--name", "x")
    assert calls == [("here", Toy(), 1), ("there", Toy(7, True, "x"), 2)]


def test_help_and_limits_are_those_of_the_fields(called):
    ran, calls = called("here", "--first-size", "0")
    assert (ran.exit_code, calls) == (2, [])
    text = " ".join(called("--help")[0].output.split())
    assert all(expected in text for expected in ("How many.", "[default: 3]", "Whether to shout.", "Say what it does."))
    assert "--no-loud" not in text


@pytest.mark.parametrize(
    ("message", "translated"),
    [
        ("n_components=50 is too few", "--components 50 is too few"),
        ("Use bandwidth='learned', or one_standard_error=True.", "Use --bandwidth learned, or --one-standard-error."),
        ("alpha must be positive; alpha was 0", "--alpha must be positive; alpha was 0"),
        ("a larger max_seconds (now 5)", "a larger --max-seconds (now 5)"),
        ("checkpoint='a b/c' is a folder", "--checkpoint 'a b/c' is a folder"),
        ("cv=0.2 leaves 3 rows, and cv=5 folds too few", "--validation 0.2 leaves 3 rows, and --folds 5 folds too few"),
        ("The kernel and the solver of the quantiles", "The kernel and the solver of the quantiles"),
    ],
)
def test_errors_name_options_instead_of_parameters(message, translated):
    assert translate_parameters(message) == translated


@pytest.mark.parametrize(
    ("options", "estimator"), [(FitOptions, KernelQuantileRegressor), (SearchOptions, KernelQuantileRegressorCV)]
)
def test_every_parameter_that_an_option_sets_is_translated(options, estimator):
    given = options(components="9", tol=1e-3)
    made = given.make_estimator(*(["kernel"] if options is FitOptions else []), TrainingOptions())
    assert isinstance(made, estimator)
    assert (made.n_components, made.tol, made.sampling) == (9, 1e-3, estimator().sampling)
    assert {one.name for one in fields(options)} & set(made.get_params()) <= set(PARAMETERS)
    assert {"n_components", "tol", "max_seconds"} <= set(given.kernel_params()) & set(PARAMETERS)
