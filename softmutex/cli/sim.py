"""`softmutex sim`: run, reproduce, compare, replay, check. Reads the command line; the work is in `softmutex/sim`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from softmutex import plugins, values
from softmutex.cli import DATA, Mistake, complain
from softmutex.core.errors import ConfigError
from softmutex.sim import (
    campaign,
    compare,
    compare_faults,
    engine,
    nemesis,
    papers,
    picture,
    report,
    scenarios,
    tracefile,
)
from softmutex.sim.faults import Churn, Fault, Kill, Partition, TokenLoss, fault_to_json
from softmutex.sim.progress import bar
from softmutex.sim.result import Result
from softmutex.sim.run import simulate
from softmutex.sim.scenario import DEMANDS, HOLDS, Scenario
from softmutex.sim.spy import teller
from softmutex.sim.watch import MOST_NODES, Watcher


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(dest="part", required=True, metavar="run|reproduce|compare|replay|check")
    _run_arguments(parts.add_parser("run", help="one run: statistics of it, a picture, a trace"))
    papers.add_arguments(parts.add_parser("reproduce", help="the papers' tables and figures, printed beside measured"))
    _compare_arguments(parts.add_parser("compare", help="several algorithms under equal conditions"))
    _replay_arguments(parts.add_parser("replay", help="a run from its trace once more, compared to the byte"))
    _check_arguments(parts.add_parser("check", help="everything that may go wrong, with the laws watched"))


def main(arguments: argparse.Namespace) -> int:
    parts: dict[str, Callable[[argparse.Namespace], int]] = {
        "run": _run,
        "reproduce": _reproduce,
        "compare": _compare,
        "replay": _replay,
        "check": _check,
    }
    return parts[arguments.part](arguments)


# --- run -------------------------------------------------------------------------------------------------------------


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--algorithm", metavar="A", help="which one (default: wandering)")
    add("--nodes", type=whole, metavar="N", help="how many take part (default: 10)")
    add("--duration", type=seconds, metavar="T", help="virtual seconds, or 20m, 2h, 3d (default: 1000)")
    add("--seed", type=whole, metavar="S", help="the same seed gives the same run (default: 1)")
    add("--op", type=seconds, metavar="T", help="how long A takes, what runs under the mutex (default: 4)")
    add("--skip", type=seconds, metavar="T", help="how long a node keeps a token that it does not need")
    add("--min-interval", type=seconds, metavar="T", help="least time between two runs of A on a node")
    add("--max-interval", type=seconds, metavar="T", help="time after which a token is missed")
    add("--nodes-max", type=whole, metavar="N", help="how many nodes saturate the resource (default: 300)")
    add("--demand", metavar="D", help=f"{', '.join(DEMANDS)}; RATE: requests a second of all (default: saturated)")
    add("--hold", metavar="H", help=f"how long A really takes: {', '.join(HOLDS)} (default: fixed)")
    add("--slots", type=whole, metavar="K", help="how many may run A at once (default: 1)")
    add("--delay", type=seconds, metavar="D", help="one-way delay (default: 0, as in the papers)")
    add("--jitter", type=float, metavar="P", help="share by which the delay varies up and down (default: 0.5)")
    add("--loss", type=float, metavar="P", help="share of messages that are lost")
    add("--duplication", type=float, metavar="P", help="share of messages that arrive twice")
    add("--reordering", type=float, metavar="P", help="share of messages that others overtake")
    add("--token-loss-every", type=seconds, metavar="S", help="each S seconds a hand-over loses the token for good")
    add("--kill-holder-every", type=seconds, metavar="S", help="each S seconds the holder dies; a newcomer replaces it")
    add("--partition", metavar="START:END:SHARE", help="a share of the nodes is cut off from the rest")
    add("--churn", type=float, metavar="RATE", help="share of the nodes that leaves in good order each minute")
    add("--settle", type=seconds, metavar="T", help="then heal, and grant whoever waits within T")
    add("--option", action="append", default=[], metavar="NAME=VALUE", help="a switch of the algorithm's own")
    add("--settings", default="", metavar="JSON", help="anything else of a scenario, as a violation prints it")
    add("--watch", action="store_true", help="watch the token live, for up to 400 nodes")
    add("--show", metavar="FROM:TO", help="print every event and effect of these seconds")
    add("--plot", metavar="FILE.png", help="draw the run")
    add("--trace", metavar="FILE", help="write the run, for `softmutex sim replay`")
    add("--json", action="store_true", help="one JSON object instead of lines")


def scenario_of(arguments: argparse.Namespace) -> Scenario:
    """The defaults, then --settings, then the flags."""
    given = _settings(arguments.settings)
    for field, flag in report.FLAGS.items():
        value = getattr(arguments, flag[2:].replace("-", "_"))
        if value is not None:
            given[field] = value
    given["options"] = {**given.get("options", {}), **dict(map(_option, arguments.option))}
    given["faults"] = [*given.get("faults", []), *map(fault_to_json, _faults(arguments))]
    return Scenario.from_json(given)


def _settings(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text) if text else {}
    except ValueError as error:
        raise Mistake(f"softmutex sim run: --settings is not JSON: {error}") from error
    if not isinstance(given, dict):
        raise Mistake(f"softmutex sim run: --settings is {text!r}: give a JSON object")
    return given


def _faults(arguments: argparse.Namespace) -> list[Fault]:
    faults: list[Fault] = []
    if arguments.token_loss_every is not None:
        faults.append(TokenLoss(arguments.token_loss_every))
    if arguments.kill_holder_every is not None:
        faults.append(Kill(arguments.kill_holder_every))
    if arguments.partition is not None:
        parts = arguments.partition.split(":")
        try:
            start, end, share = parts
            faults.append(Partition(seconds(start), seconds(end), float(share)))
        except (ValueError, argparse.ArgumentTypeError):
            raise ConfigError(
                f"--partition {arguments.partition!r} is not START:END:SHARE, such as 100:200:0.4 (40 % are cut off "
                "from 100 s to 200 s)"
            ) from None
    if arguments.churn is not None:
        faults.append(Churn(arguments.churn))
    return faults


def _run(arguments: argparse.Namespace) -> int:
    scenario = scenario_of(arguments)
    plugins.algorithm(scenario.algorithm)
    draw = picture.prepare(arguments.plot) if arguments.plot else None
    scenario = scenario.but(keep_holds=draw is not None)
    spy = teller(sys.stdout.write, *_window(arguments.show)) if arguments.show else None
    look = Watcher(scenario) if arguments.watch else None
    if look is not None and scenario.nodes > MOST_NODES:
        raise Mistake(f"softmutex sim run: --watch shows up to {MOST_NODES} nodes: give fewer --nodes, or leave it out")
    writer = tracefile.Writer(writable(arguments.trace), scenario) if arguments.trace else None
    result = None
    try:
        with bar(scenario.algorithm_name, quiet=look is not None) as progress:
            result = simulate(scenario, progress, writer, spy, look)
    finally:
        if writer is not None:
            writer.close(result)
    if draw is not None:
        draw(picture.run, result)
    return _tell(result, arguments.json)


def _tell(result: Result, as_json: bool) -> int:
    sys.stdout.write(json.dumps(result.to_json()) + "\n" if as_json else report.as_text(result))
    sys.stderr.write(report.violations(result))
    return 1 if result.violation_count else 0


# --- reproduce -------------------------------------------------------------------------------------------------------


def _reproduce(arguments: argparse.Namespace) -> int:
    return papers.main(arguments)


# --- compare ---------------------------------------------------------------------------------------------------------


def _compare_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--nodes", type=whole, nargs="+", default=[10], metavar="N", help="how many take part; several sizes are fine")
    add("--algorithms", default="", metavar="A,B,C", help="which ones (default: all that are installed)")
    add("--seed", type=whole, default=1, metavar="S")
    add("--entries", type=whole, default=400, metavar="N", help="how often A runs in each measurement (default: 400)")
    most = f"leave out what takes more (default: {compare.MOST:,})"
    add("--events", type=whole, default=compare.MOST, metavar="N", help=most)
    add("--faults", action="store_true", help="instead: what nine nodes do under each fault, as a table of Markdown")
    _engine_arguments(parser)
    add("--json", action="store_true", help="one JSON object instead of a table")
    add("--plot", metavar="FILE.png", help="draw the table")


def _compare(arguments: argparse.Namespace) -> int:
    names = [name for name in arguments.algorithms.split(",") if name]
    if arguments.faults:
        with bar("compare") as progress, engine.on(arguments.on, arguments.jobs) as found:
            cells = compare_faults.measure(names, progress, found)
        sys.stdout.write(compare_faults.as_json(cells) if arguments.json else compare_faults.as_text(cells))
        return 0
    draw = picture.prepare(arguments.plot) if arguments.plot else None
    with bar("compare") as progress, engine.on(arguments.on, arguments.jobs) as found:
        how = (names, arguments.nodes, arguments.seed, arguments.entries)
        rows = compare.measure(*how, progress, found, arguments.events)
    if draw is not None:
        draw(picture.comparison, rows)
    sys.stdout.write(compare.as_json(rows) if arguments.json else compare.as_text(rows))
    return 0


# --- replay ----------------------------------------------------------------------------------------------------------


def _replay_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", metavar="TRACE", help="what `softmutex sim run --trace` wrote")
    parser.add_argument("--show", metavar="FROM:TO", help="print every event and effect of these seconds")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")


def _replay(arguments: argparse.Namespace) -> int:
    spy = teller(sys.stdout.write, *_window(arguments.show)) if arguments.show else None
    try:
        trace = tracefile.read(Path(arguments.trace))
    except tracefile.BadTrace as error:
        return complain(f"softmutex sim replay: {error}", DATA)
    with bar("replay") as progress:
        result, difference = tracefile.replay(trace, progress, spy)
    code = _tell(result, arguments.json)
    if difference:
        return complain(f"softmutex sim replay: not the same run: it {difference}", 1)
    if not arguments.json:
        sys.stdout.write(f"the same run, to the byte: {result.events} events, digest {result.digest}\n")
    return code


# --- check -----------------------------------------------------------------------------------------------------------


def _check_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--for", type=seconds, dest="how_long", metavar="T", help="as many seeds as there is time for: 1h, 20m")
    add("--seeds", type=whole, metavar="N", help="how many seeds (default: 100; of a named scenario 10)")
    add("--seed", type=whole, metavar="S", help="the first one (default: 1), the only one if nothing else is said")
    _engine_arguments(parser)
    add("--nodes", type=_sizes, default=(nemesis.FEWEST, nemesis.MOST), metavar="LO:HI", help="sizes (default: 2:200)")
    add(
        "--shrink-for", type=seconds, default=campaign.SHRINKING_S, metavar="T", help="at most, a failure (default: 60)"
    )
    add("--scenario", metavar="NAME", help=f"instead: all, or one of {', '.join(scenarios.MATRIX)}")
    add("--algorithm", default="wandering", metavar="A", help="which one (default: wandering)")
    add("--json", action="store_true", help="JSON: one object, or with --scenario one a run")


def _engine_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--jobs", type=whole, default=1, metavar="K", help="processes side by side (default: 1)")
    add("--on", metavar="ADDRESS", help="a Dask scheduler, such as tcp://scheduler:8786: its workers do it")


def _sizes(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    try:
        fewest, most = int(low), int(high or low)
    except ValueError:
        fewest = most = 0
    if not 2 <= fewest <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not LO:HI, such as 2:200: two numbers of nodes, 2 or more")
    return fewest, most


def _check(arguments: argparse.Namespace) -> int:
    plugins.algorithm(arguments.algorithm)
    if arguments.scenario:
        return _check_matrix(arguments)
    with engine.on(arguments.on, arguments.jobs) as found:
        return _check_at_random(arguments, found)


def _check_at_random(arguments: argparse.Namespace, where: engine.Engine) -> int:
    begun = time.monotonic()
    how_many = arguments.seeds
    if how_many is None and arguments.how_long is None:
        how_many = 100 if arguments.seed is None else 1
    until = None if arguments.how_long is None else begun + arguments.how_long
    plans = (
        campaign.CampaignPlan(seed, arguments.nodes, arguments.algorithm)
        for seed in campaign.seeds(arguments.seed or 1, how_many)
    )
    adds_up, broken = campaign.Campaign(arguments.algorithm), []
    with bar("nemesis") as progress:
        for outcome in campaign.outcomes(plans, where, until):
            adds_up.add(outcome)
            for law, what in outcome.broken.items():
                if len(adds_up.failures[law]) <= campaign.SHRUNK_OF_A_LAW:
                    broken.append((campaign.CampaignPlan(outcome.seed, arguments.nodes, arguments.algorithm), law))
                if not arguments.json:
                    sys.stdout.write(f"seed {outcome.seed} ({', '.join(outcome.weather)}): {what}\n")
                    sys.stdout.flush()
            if progress is not None:
                passed = (time.monotonic() - begun) / arguments.how_long if arguments.how_long else 0.0
                progress(min(1.0, max(passed, adds_up.runs / how_many if how_many else 0.0)))
    wall_s = time.monotonic() - begun
    smallest = []
    for found in campaign.smallest(broken, where, arguments.shrink_for):
        smallest.append(found)
        if not arguments.json:
            sys.stdout.write(f"seed {found.seed}, made smaller: {found.what}\nreplay: {found.command}\n")
            sys.stdout.flush()
    if arguments.json:
        found_out = adds_up.to_json(wall_s)
        sys.stdout.write(json.dumps({**found_out, "smallest": [each._asdict() for each in smallest]}) + "\n")
    else:
        sys.stdout.write(adds_up.as_text(wall_s))
    return 1 if adds_up.failures else 0


def _check_matrix(arguments: argparse.Namespace) -> int:
    everything = arguments.scenario == "all"
    algorithm = plugins.algorithm(arguments.algorithm)
    names = scenarios.fitting(algorithm) if everything else [scenarios.find(arguments.scenario)]
    seeds = range(1, (arguments.seeds or 10) + 1) if arguments.seed is None else [arguments.seed]
    broken = 0
    for name in names:
        with bar(f"{name:<24}") as progress:
            results = scenarios.sweep(name, arguments.algorithm, seeds, progress)
        broken += sum(bool(result.violation_count) for result in results)
        for result in results:
            if arguments.json:
                sys.stdout.write(json.dumps({"scenario": name, **result.to_json()}) + "\n")
            sys.stderr.write(report.violations(result, scenarios.command(name, result.scenario)))
        if not arguments.json:
            sys.stdout.write(scenarios.line(name, results) + "\n")
            sys.stdout.flush()
    return 1 if broken else 0


# --- what is typed ---------------------------------------------------------------------------------------------------


def seconds(text: str) -> float:
    try:
        return values.duration_s(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: give seconds, or 50ms, 20m, 2h, 3d") from None


def whole(text: str) -> int:
    try:
        return values.whole(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise Mistake(f"softmutex sim run: --option {text!r} is not NAME=VALUE, such as hints=false")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _window(text: str) -> tuple[float, float]:
    start, _, end = text.partition(":")
    try:
        return seconds(start), seconds(end)
    except argparse.ArgumentTypeError:
        raise Mistake(f"softmutex sim: --show {text!r} is not FROM:TO in seconds, such as 12.5:13") from None


def writable(name: str) -> Path:
    """The path, after a look whether it can be written: before a long run, not after it."""
    path = Path(name)
    try:
        with path.open("ab"):
            pass
    except OSError as error:
        raise ConfigError(f"cannot write {name}: {error.strerror}. Give a path in a directory of yours") from None
    return path
