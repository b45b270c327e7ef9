"""The table of arguments has a type for each, and what derives from it knows every argument."""

from dataclasses import fields

from ladder_sim.cli.commands import program
from ladder_sim.specs.arguments import ARGUMENTS, DEFAULTS, ScenarioFields
from ladder_sim.specs.scenario import Scenario
from ladder_sim.validation.dataset import Configuration


def test_every_argument_has_a_type() -> None:
    assert sorted(ScenarioFields.__annotations__) == sorted(ARGUMENTS) == sorted(DEFAULTS)


def test_a_scenario_holds_every_argument() -> None:
    scenario = Scenario(model="405b", nodes=2, batch=3, p2p=False)
    assert Scenario(**scenario.fields()) == scenario


def test_every_argument_is_a_flag_or_set_and_an_axis() -> None:
    commands = program().commands
    given = {name for name, argument in ARGUMENTS.items() if argument.has_flag}
    for command, keys in (("predict", {ARGUMENTS[name].key for name in given}), ("sweep", given)):
        flags = {option.name for option in commands[command].params}
        assert flags & {*ARGUMENTS, *(each.key for each in ARGUMENTS.values())} == keys
    assert all(argument.maximum > 0 for argument in ARGUMENTS.values() if argument.kind is int)


def test_columns_of_a_data_set_are_arguments() -> None:
    assert {field.name for field in fields(Configuration)} - {"source"} <= set(ARGUMENTS)
