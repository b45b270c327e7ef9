"""The command line of a cross-check: ``python -m calibration crosscheck``; under torchrun it is one of the ranks."""

import argparse
import json
import os
from pathlib import Path
from typing import Any

from ladder_sim.errors import UsageError
from ladder_sim.specs.settings import settings

# of standard's time that messages take on the emulated links
SHARES = (0.2, 0.3, 0.4, 0.5)


def add_to(commands: Any) -> None:
    """Add the command to a parser's."""
    check = commands.add_parser("crosscheck", help="predict from measurements of this machine, and run the same on it")
    check.add_argument("--model", required=True, help="catalog name, or a config.json or its folder")
    check.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of model or stack; repeatable")
    check.add_argument("--stack", default="gpt-fast", help="whose habits the passes have (default %(default)s)")
    check.add_argument("--tp", type=int, default=2, help="tensor-parallel degree (default %(default)s)")
    check.add_argument("--batch", type=int, default=1, help="requests served together (default %(default)s)")
    check.add_argument("--prompt", type=int, default=32, help="tokens of each prompt (default %(default)s)")
    check.add_argument("--gen", type=int, default=8, help="new tokens of each request (default %(default)s)")
    check.add_argument("--variant", action="append", required=True, help="residual wiring; repeatable")
    check.add_argument("--backend", choices=("emulate", "gloo"), default="emulate", help="emulate: in one process")
    check.add_argument("--share", action="append", type=float, help="emulated: messages' part of standard's time")
    check.add_argument("--rounds", type=int, default=15, help="requests of each variant (default %(default)s)")
    check.add_argument("--threads", type=int, default=1, help="CPU threads of each rank (default %(default)s)")
    check.add_argument("--calibration", type=Path, help="result whose calibration is used instead of a new one")
    check.add_argument("--timeout", type=float, default=120.0, help="seconds that ranks wait for each other")
    check.add_argument("--out", type=Path, help="write the JSON to a file instead of stdout")
    check.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    # imported here: they need torch
    from calibration.crosscheck.measure import Plan
    from calibration.crosscheck.run import cross_check, own_scenario
    from runtime.comm.launch import launch
    from runtime.comm.rendezvous import CommConfig, Place

    for flag, value, least in (
        ("--tp", options.tp, 2),
        ("--rounds", options.rounds, 2),
        ("--threads", options.threads, 1),
    ):
        if value < least:
            raise UsageError(f"{flag} is {value}: must be {least} or more")
    if options.out is not None and not options.out.parent.is_dir():
        raise UsageError(f"--out '{options.out}': there is no such folder", hint="choose one that is there")
    shares = tuple(options.share or SHARES)
    for share in shares:
        if not 0.0 < share < 1.0:
            raise UsageError(
                f"--share is {share}: must lie between 0 and 1", hint="0.4: messages take 40 % of the time"
            )
    scenario = own_scenario(
        options.model,
        options.stack,
        tp=options.tp,
        batch=options.batch,
        prompt=options.prompt,
        gen=options.gen,
        overrides=settings(options.set),
    )
    plan = Plan(
        scenario=scenario,
        variants=tuple(options.variant),
        shares=shares,
        rounds=options.rounds,
        threads=options.threads,
    )
    if options.backend == "gloo" and "RANK" not in os.environ:
        return launch(options.argv, options.tp, "calibration")
    found = cross_check(plan, CommConfig(backend=options.backend, timeout_s=options.timeout), options.calibration)
    if Place.from_environment().rank == 0:
        text = json.dumps(found, indent=1) + "\n"
        if options.out is None:
            print(text, end="")
        else:
            options.out.write_text(text, encoding="utf-8")
    return 0
