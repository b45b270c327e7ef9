"""docs/schemas hold each answer of a command, and nothing that is nearly one: keys, types and ranges are strict."""

import json
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from ladder_sim import Scenario, sweep
from ladder_sim.validation.runs import Compared, RunCheck
from tests.support.answers import answers as schemas
from tests.support.archives import pack
from tests.support.commands import run
from tests.support.schemas import check, validator

# a command for each schema of answers, or several where the answer has several forms
COMMANDS: dict[str, tuple[str, ...]] = {
    "prediction": (
        "predict --model 405b --nodes 2",
        "predict --model 8b --variant ladder --stack vllm --concurrency 8",
        "predict --model 8b --variant ladder --set jitter=0.1",
        "predict --model 8b --variant ladder --gen 1",
    ),
    "versus": (
        "versus --model 8b --stack trtllm --tp 4",
        "versus --model 8b --tp 2 --stack vllm --rate 4 --slo ttft_p95=1s --requests 40 --seeds 1",
    ),
    "search": (
        "versus --model 8b --gen 16 --search examples/search.toml",
        "versus --model 8b --tp 4 --stack vllm --concurrency 8 --gen 16 --search examples/search.toml",
    ),
    "advise": (
        "advise --model 70b --gpus 8 --variant standard",
        "advise --model 8b --gpus 2 --stack vllm --concurrency 8 --max-tpot 7ms",
    ),
    "compare": (
        "compare h100-sxm h200-sxm --model 8b --variant ladder",
        "compare vllm sglang --model 8b --variant ladder --concurrency 8",
    ),
    "breakeven": ("breakeven --model 70b --gain 20% intra.allreduce_floor=1:100us",),
    "sensitivity": ("sensitivity --model 8b --variant ladder",),
    "sweep-row": ("sweep --model 8b,405b --variant ladder --set inter.bandwidth=1GBps",),
    "serve": (
        "serve --model 8b --tp 1 --rate 4 --requests 20 --seeds 1 --variant standard",
        "serve --model 8b --tp 2 --stack vllm --rate 4 --requests 20 --seeds 1 --slo ttft_p95=1s",
        "serve --model 8b --tp 1 --rate 1 --gen 4 --requests 20 --seeds 1 --variant standard --set prefill_replicas=1",
    ),
    "capacity": ("capacity --model 8b --tp 1 --rate 4 --gen 4 --requests 40 --seeds 1 --slo ttft_p95=1s",),
    "validation": ("validate --level microbench",),
    "validation-servings": ("validate serving-dense",),
    "validation-ranking": ("validate serving-moe --ranking",),
    "validation-loads": ("validate tests/data/results/vllm_rate.json --model 8b --cluster h100-sxm --tp 1",),
    "trace-info": ("trace info tests/data/traces/alexnet.json.gz",),
    "trace-replay": ("trace replay tests/data/traces/alexnet.json.gz",),
    "trace-predict": ("trace predict tests/data/traces/tp/h100_compiled_graph",),
    "list": (
        "list",
        "list models",
        "list clusters",
        "list stacks",
        "list variants",
        "list techniques",
        "list profiles",
    ),
    "list-settings": ("list settings",),
    "list-quality": ("list quality",),
}
# objects that hold an entry for each variant, plan or group: one fewer is as true
MAPS = ("variants", "collectives", "gains", "left_out", "techniques", "wirings", "under_load", "critical_path_s")
MAPS += ("protocols", "levels", "not_predicted", "summary", "settings", "validated")


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Documents of every schema of answers."""
    documents = {
        name: [each for command in commands for each in _answers(command)] for name, commands in COMMANDS.items()
    }
    documents["validation-archive"] = _answers(f"validate {pack(tmp_path_factory.mktemp('archive') / 'node.tar.gz')}")
    table = sweep(Scenario(model="8b"), {"tp": [4, 8]}, variants=["ladder"])
    documents["sweep"] = [table.to_dict()]
    row = Compared(variant="ladder", quantity="tpot_s", predicted=1.1, measured=1.0, low=0.9, high=1.2)
    documents["validation-runs"] = [RunCheck(title="ran", rows=(row,), timed=("standard",), missing=()).to_dict()]
    return documents


def _answers(command: str) -> list[dict[str, Any]]:
    out = run(*shlex.split(command), "--json").out
    # a sweep writes a document a line
    return [json.loads(out)] if out.startswith("{\n") else [json.loads(line) for line in out.splitlines()]


def test_answers_are_as_their_schemas_say(answers: dict[str, list[dict[str, Any]]]) -> None:
    assert set(answers) == set(schemas())
    for name, documents in answers.items():
        assert documents
        for document in documents:
            check(name, document)


def test_what_is_nearly_an_answer_is_none(answers: dict[str, list[dict[str, Any]]]) -> None:
    """Regression: of 294 keys that were renamed in turn, the schema of all answers caught one."""
    caught: Counter[str] = Counter()
    missed: dict[str, list[str]] = defaultdict(list)
    for name, documents in answers.items():
        for whole in documents:
            document = _short(whole)
            check(name, document)
            for kind, place in _nearly(document):
                if validator(name).is_valid(document):
                    missed[kind].append(f"{name}: {place}")
                else:
                    caught[kind] += 1
    said = {kind: f"{count} of {count + len(missed[kind])}" for kind, count in caught.items()}
    print(said, dict(missed))
    for kind, count in caught.items():
        assert count >= 0.99 * (count + len(missed[kind])), (said, missed[kind])


def _short(part: Any, name: str = "", within: str = "") -> Any:
    """One entry of each list of entries, two of each map."""
    if isinstance(part, list):
        # a pair of a name and its value is whole
        return [_short(each) for each in part[:1]] if any(isinstance(each, dict | list) for each in part) else part
    if not isinstance(part, dict):
        return part
    entries = [key for key, value in part.items() if _is_entry(value, name, within)][2:]
    return {key: _short(value, key, name) for key, value in part.items() if key not in entries}


def _nearly(part: Any, name: str = "", within: str = "") -> Iterator[tuple[str, str]]:
    """Change a document in one place at a time, and undo it: what was done, and where."""
    place = f"{within}/{name}"
    if isinstance(part, dict):
        part["surprise"] = 1
        yield "added", place
        del part["surprise"]
        for key in list(part):
            value = part.pop(key)
            if not _is_entry(value, name, within):
                yield "removed", f"{place}/{key}"
            part[f"{key}_x"] = value
            yield "renamed", f"{place}/{key}"
            del part[f"{key}_x"]
            part[key] = value
    for key in list(part) if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ():
        value = part[key]
        part[key] = _other_type(value)
        yield "of another type", f"{place}/{key}"
        if isinstance(value, int | float) and not isinstance(value, bool):
            part[key] = -abs(value) - 1
            yield "out of range", f"{place}/{key}"
        part[key] = value
        yield from _nearly(value, str(key), place)


def _is_entry(value: Any, name: str, within: str) -> bool:
    """Whether an object is a map with such an entry."""
    return within.endswith("by") or (name in MAPS and (name != "validated" or isinstance(value, dict)))


def _other_type(value: Any) -> Any:
    return 7 if isinstance(value, str) else [] if isinstance(value, dict) or value is None else "text"
