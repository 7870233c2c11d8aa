"""What holds the house together, as tests: layers, purity, contract tests, sizes, and the README's promises."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pytest

from softmutex.core.messages import HANDOVER, OF_NODE, name_of

ROOT = Path(__file__).parent.parent
ROOMS = [ROOT / "softmutex", ROOT / "adapters"]
CORE = ROOT / "softmutex" / "core"
GROUPS = ["softmutex.algorithms", "softmutex.transports", "softmutex.memberships", "softmutex.observers"]
MOST_LINES_OF_A_FILE = 500
MOST_LINES_OF_A_STATE_MACHINE = 900  # fewer large ones beat many that reach into each other
MOST_LINES_OF_A_FUNCTION = 80


def ours(group: str) -> list[EntryPoint]:
    """The project's own entry points: another package's plug-in may be installed beside it."""
    return [point for point in entry_points(group=group) if point.dist and point.dist.name == "softmutex"]


def sources(*rooms: Path) -> list[tuple[Path, str]]:
    return [(path.relative_to(ROOT), path.read_text()) for room in rooms for path in sorted(room.rglob("*.py"))]


def is_of_an_algorithm(path: Path) -> bool:
    return "algorithms" in path.parts


def where(path: Path, node: ast.AST) -> str:
    return f"{path}:{getattr(node, 'lineno', 0)}"


# --- rooms and doors -------------------------------------------------------------------------------------------------


@pytest.mark.house
def test_a_room_knows_only_the_rooms_below_it_and_the_core_is_pure():
    linter = Path(sys.executable).with_name("lint-imports")
    run = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


# These give another answer in another process, on another machine, or reach outside.
IMPURE_BUILTINS = {"hash", "id", "open", "print", "input", "exec", "eval", "__import__"}
# Unrolls the declarations of messages into functions, the same in every process; nothing received is in their source.
MAY_EXEC = Path("softmutex", "core", "unrolled.py")


def impurities(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_BUILTINS:
                yield node, f"calls {name}()"
            case ast.Attribute(value=ast.Name(id="rng" | "_rng") | ast.Attribute(attr="rng" | "_rng"), attr=method):
                if method != "random":
                    yield node, f"uses rng.{method}: only the sequence of rng.random() is promised for ever"
            case ast.Assert():
                yield node, "asserts: python -O would hide the breach"
            case ast.For(iter=ast.Set() | ast.SetComp()) | ast.comprehension(iter=ast.Set() | ast.SetComp()):
                yield node, "iterates over a set: the order differs between runs"


@pytest.mark.house
def test_a_run_of_the_core_is_a_function_of_its_seed():
    found = [
        f"{where(path, node)} {what}"
        for path, text in sources(CORE)
        for node, what in impurities(ast.parse(text))
        if (path, what) != (MAY_EXEC, "calls exec()")
    ]
    assert not found, "take time, chance and the world from the driver, as values:\n" + "\n".join(found)


def test_impurities_are_seen():
    code = "print(id(x))\nself.rng.shuffle(xs)\nassert x\nfor a in {1, 2}: pass\n[a for a in {1}]\nself._rng.random()"
    assert sorted(what.split()[0] for _, what in impurities(ast.parse(code))) == [
        *["asserts:", "calls", "calls", "iterates", "iterates", "uses"]
    ]


# --- plug-ins --------------------------------------------------------------------------------------------------------


@pytest.mark.house
@pytest.mark.parametrize("group", GROUPS)
def test_what_is_installed_is_what_pyproject_registers(group: str):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installed = {point.name: point.value for point in ours(group)}
    assert installed == project["entry-points"].get(group, {}), 'pip install -e ".[dev]" makes them the same again'


@pytest.mark.parametrize("group", GROUPS)
def test_every_entry_point_loads(group: str):
    broken = []
    for point in ours(group):
        try:
            point.load()
        except (ImportError, AttributeError) as error:
            broken.append(f"{point.name} = {point.value}: {error}")
    assert not broken, "pyproject.toml names what is not there, as module:Class:\n" + "\n".join(broken)


def all_subclasses(cls: type) -> Iterator[type]:
    for below in cls.__subclasses__():
        yield below
        yield from all_subclasses(below)


@pytest.mark.parametrize(
    ("group", "contract"),
    [
        ("softmutex.transports", "TransportContract"),
        ("softmutex.memberships", "MembershipContract"),
        ("softmutex.observers", "ObserverContract"),
    ],
)
def test_every_registered_adapter_has_its_contract_test(group: str, contract: str):
    contracts: Any = importlib.import_module("softmutex.testing.contracts")
    for path in sorted((Path(__file__).parent / "contracts").glob("test_*.py")):
        importlib.import_module(f"tests.contracts.{path.stem}")
    proofs = [cls for cls in all_subclasses(getattr(contracts, contract)) if cls.__name__.startswith("Test")]
    proven = {cls.scheme for cls in proofs if hasattr(cls, "scheme")}
    unproven = sorted({point.name for point in ours(group)} - proven)
    assert not unproven, (
        f"no contract test for {', '.join(unproven)}. In tests/contracts/test_<name>.py write "
        f"`class Test...({contract}): scheme = {unproven[0]!r}` and the way to make one."
    )


# --- sizes and words -------------------------------------------------------------------------------------------------


@pytest.mark.house
def test_no_file_has_outgrown_its_readers():
    sizes = {path: len(text.splitlines()) for path, text in sources(*ROOMS)}
    most = {path: MOST_LINES_OF_A_STATE_MACHINE if is_of_an_algorithm(path) else MOST_LINES_OF_A_FILE for path in sizes}
    found = [f"{path}: {n} lines, {most[path]} at most" for path, n in sizes.items() if n > most[path]]
    assert not found, "split it where it decides two things:\n" + "\n".join(found)


@pytest.mark.house
def test_no_function_has_outgrown_its_readers():
    found = []
    for path, text in sources(*ROOMS):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MOST_LINES_OF_A_FUNCTION:
                    found.append(f"{where(path, node)} {node.name}: {lines} lines, {MOST_LINES_OF_A_FUNCTION} at most")
    assert not found, "take out what has a name of its own:\n" + "\n".join(found)


# --- who writes what -------------------------------------------------------------------------------------------------


def assigned(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Every attribute that is assigned or deleted."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node


def fields(tree: ast.Module) -> set[str]:
    """What the classes of a module have: what their methods set on themselves."""
    return {each.attr for each in assigned(tree) if isinstance(each.value, ast.Name) and each.value.id == "self"}


def reaches(tree: ast.AST) -> Iterator[ast.AST]:
    """`self.machine.part.member`: a part that knows the whole, and all that is in it."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id="self"), attr="machine")):
                yield node


def written_from_outside(tree: ast.Module) -> Iterator[ast.AST]:
    """Fields that are not one's own: `self.a.b = `, and `record.field = ` where another module declares the record."""
    own = fields(tree)
    for each in assigned(tree):
        its_own = isinstance(each.value, ast.Name) and each.value.id == "self"
        if isinstance(each.value, ast.Attribute) or (not its_own and each.attr not in own):
            yield each


@pytest.mark.house
def test_no_part_of_an_algorithm_knows_the_whole_machine():
    found = [
        f"{where(path, node)} {ast.unparse(node)}"
        for path, text in sources(CORE / "algorithms")
        for node in reaches(ast.parse(text))
    ]
    assert not found, "a part gets what it needs when it is made:\n" + "\n".join(found)


@pytest.mark.house
def test_nobody_writes_the_fields_of_another_part():
    found = [
        f"{where(path, node)} {ast.unparse(node)} = ..."
        for path, text in sources(CORE / "algorithms" / "wandering")
        for node in written_from_outside(ast.parse(text))
    ]
    assert not found, "call a verb of whoever has the field:\n" + "\n".join(found)


def rows_of_rules(table: str) -> list[tuple[str, str]]:
    """(rule, where), of a module's header that has such a table."""
    head = re.search(r"^    rule +where +.*\n((?:    \S.*\n)+)", table, re.MULTILINE)
    return [
        (row[1], row[2]) for row in re.finditer(r"^    (\S+(?: \S+)*) +(\w+)  ", head[1] if head else "", re.MULTILINE)
    ]


@pytest.mark.house
@pytest.mark.parametrize("algorithm", ["wandering", "keeper"])
def test_a_rule_stands_in_the_table_with_the_module_that_has_it(algorithm: str):
    folder = CORE / "algorithms" / algorithm
    rows = rows_of_rules((folder / "__init__.py").read_text())
    assert len(rows) > 10, f"{folder.name}/__init__.py has no table `rule  where  ...`"
    lost = [f"{rule}: {module}.py" for rule, module in rows if not (folder / f"{module}.py").exists()]
    assert not lost, f"name the module that has the rule in the table of {folder.name}/__init__.py:\n" + "\n".join(lost)


def test_what_is_written_from_outside_is_seen():
    code = "class A:\n def f(self, b):\n  self.a = 1\n  self.b.a = 2\n  b.a = 3\n  b.c += 4\n  del b.d\n  b.e.f = 5"
    found = sorted(ast.unparse(each) for each in written_from_outside(ast.parse(code)))
    assert found == ["b.c", "b.d", "b.e.f", "self.b.a"]
    assert [ast.unparse(each) for each in reaches(ast.parse("self.machine.a.b()"))] == ["self.machine.a"]


def test_every_noun_of_the_core_and_of_the_simulator_is_in_the_glossary():
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    told = {word for part in re.findall(r"`([\w` ,]+)`", glossary) for word in re.split(r"[^\w]+", part)}
    messages = {name_of(cls) for cls in (*HANDOVER.values(), *OF_NODE.values())}
    untold = messages - set(re.findall(r"^\| ([A-Z_]+) \|", glossary, re.MULTILINE))
    assert not untold, f"docs/glossary.md has no row `| MESSAGE | what it says |` for {', '.join(sorted(untold))}"
    missing = [
        f"{path}: {node.name}"
        for path, text in sources(CORE, ROOT / "softmutex" / "sim")
        if "algorithms" not in path.parts
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        if node.name not in told and re.sub(r"(?<!^)([A-Z])", r"_\1", node.name).upper() not in messages
    ]
    assert not missing, "docs/glossary.md has no line with the name in backquotes for " + ", ".join(missing)


# One thing with three faces: for a loop, for threads, for a program beside an agent.
FACES = {"Hold", "Node", "SoftMutex"}


@pytest.mark.house
def test_no_two_classes_of_the_product_have_one_name():
    homes: dict[str, list[str]] = {}
    for path, text in sources(ROOT / "softmutex"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(where(path, node))
    found = [f"{name}: {', '.join(places)}" for name, places in homes.items() if len(places) > 1 and name not in FACES]
    assert not found, "give the newer one a name that says whose it is:\n" + "\n".join(sorted(found))


NUMBERED = re.compile(r"^\s*(?:[A-Z]\d  )")  # where an invariant or a promise is declared, and how it is cited
CITED = re.compile(r"(?<![\w.^+])(?:(\w+)\.)?([A-Z]\d)(?!\w)")


def home_of(path: Path) -> str:
    return path.parent.name if path.stem == "__init__" else path.stem


def test_an_invariant_is_cited_with_its_home():
    """S1 is another one in each module that has one: outside of its own, it is `handover.S1`."""
    declared: dict[str, set[str]] = {}
    for path, text in sources(*ROOMS):
        names = {line.split()[0] for line in text.splitlines() if NUMBERED.match(line)}
        declared[home_of(path)] = declared.get(home_of(path), set()) | names
    found = [
        f"{path}:{number} cites {home + '.' * bool(home)}{name}, which is declared in {home or 'none'} of its modules"
        for path, text in sources(CORE, ROOT / "softmutex" / "sim")
        for number, line in enumerate(text.splitlines(), 1)
        for home, name in CITED.findall(NUMBERED.sub("", line))
        if name not in declared.get(home or home_of(path), ())
    ]
    remedy = "declare it on a line of its own in the header of its module (`S1  ...`), and cite it as `module.S1`:\n"
    assert not found, remedy + "\n".join(found)


EMBEDDED_BY = {  # see the header of `handover.py`; its steps and what it remembers are public for tests alone
    *("stand", "give_at_once", "give", "offer_early", "commit", "withdraw", "renounce", "departed"),
    *("standing", "offered", "idle", "remembered", "received", "fired", "patience", "is_silent"),
}


def test_no_algorithm_reaches_into_its_hand_over():
    found = [
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for path, text in sources(CORE / "algorithms")
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).rpartition(".")[2].strip("_") == "handover"
        if node.attr not in EMBEDDED_BY
    ]
    assert not found, "use the verbs of `handover.py` (EMBEDDED_BY, in this file):\n" + "\n".join(found)


# Spelled in pieces, so that this file does not name what it looks for.
PRIVATE = re.compile(
    "|".join(
        ["pypi" + r"\.org", "pythonhosted" + r"\.org", "npmjs" + r"\.", r"(?<![\w.])/(?:home|root|work|Users)" + "/"]
    )
)


def project_files() -> list[Path]:
    """What git has, whoever owns the checkout, and not what somebody's CI has put beside it."""
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    return [path for path in paths if path.is_file()]


@pytest.mark.house
@pytest.mark.needs("git")
def test_no_file_names_a_package_registry_or_a_path_of_one_machine():
    found = []
    for path in project_files():
        text = path.read_bytes().decode(errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            if hit := PRIVATE.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number} names {hit[0]}")
    assert not found, "write it so that it holds on any machine:\n" + "\n".join(found)


# --- the README ------------------------------------------------------------------------------------------------------


@pytest.mark.house
def test_the_two_commands_of_the_readme_are_the_ones_that_ci_runs():
    readme, ci = ((ROOT / name).read_text() for name in ("README.md", ".ci/run"))
    assert 'pip install -e ".[dev]"\npytest\n' in readme
    assert 'pip install -q -e ".[dev]"' in ci
    assert re.search(r"^\w+ +tests +pytest -p no:cacheprovider$", ci, re.MULTILINE)


def one_acquisition_end_to_end(readme: str) -> list[str]:
    """The lines of the README's sketch: `udp receive    package.module:Class.method`, one a step."""
    lines = readme.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith("ask  ")), None)
    assert start is not None, "README.md has no line that starts with 'ask': follow one acquisition, down and up"
    end = next(number for number, line in enumerate(lines) if number > start and line.startswith("```"))
    return [line for line in lines[start:end] if line.strip()]


def resolve(name: str) -> object:
    module, _, qualified = name.partition(":")
    found: object = importlib.import_module(module)
    for part in qualified.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.house
def test_the_readme_follows_one_acquisition_along_names_that_exist():
    steps = one_acquisition_end_to_end((ROOT / "README.md").read_text())
    kinds = [step.partition("  ")[0] for step in steps if not step.startswith(" ")]
    way = ["core handle", "effects", "perform"]
    assert kinds == ["ask", "node", *way, "udp send", "udp receive", "node pump", *way]
    for step in steps:
        names = re.findall(r"softmutex\w*(?:\.\w+)*:[\w.]+", step)
        assert names, f"no 'package.module:name' in: {step}"
        for name in names:
            resolve(name)
