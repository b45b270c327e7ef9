"""The table of arguments is the signature of `Scenario.of`, and what derives from it knows every argument."""

import inspect
from dataclasses import fields

from ladder_sim.cli.options import ScenarioFlags
from ladder_sim.cli.sweep import Axes
from ladder_sim.specs.arguments import ARGUMENTS, DEFAULTS
from ladder_sim.specs.scenario import Scenario
from ladder_sim.validation.dataset import Configuration


def test_the_table_is_the_signature() -> None:
    signature = inspect.signature(Scenario.of).parameters
    described = {name: item.default for name, item in signature.items() if name not in ("variant", "overrides")}
    assert described == DEFAULTS
    assert list(described) == list(ARGUMENTS)


def test_a_scenario_holds_every_argument() -> None:
    scenario = Scenario.of(model="405b", nodes=2, batch=3, p2p=False)
    assert Scenario.of(**scenario.fields()) == scenario


def test_every_argument_is_a_flag_and_an_axis() -> None:
    flags = {option.name for option in ScenarioFlags.options()}
    assert {argument.key for argument in ARGUMENTS.values()} <= flags
    assert set(ARGUMENTS) <= {option.name for option in Axes.options()}
    assert all(argument.maximum > 0 for argument in ARGUMENTS.values() if argument.kind is int)


def test_columns_of_a_data_set_are_arguments() -> None:
    assert {field.name for field in fields(Configuration)} - {"source"} <= set(ARGUMENTS)
