"""Who may import whom, and what importing the package must not do."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import bqfd_jax

PACKAGE = Path(bqfd_jax.__file__).parent
ROOT = PACKAGE.parent
EXPERIMENTS = ROOT / "experiments"

# A part may import parts of earlier layers, never of later ones.
LAYERS = (
    ("limits",),
    ("types", "streams", "checks", "files", "extras"),
    ("schedules",),
    ("posterior", "losses", "exploration", "networks", "replay", "envs", "gekf", "tabular"),
    ("agents",),
    ("training", "demos", "policy"),
    ("runs", "playing"),
    ("api", "console"),
)
LAYER_OF = {part: depth for depth, parts in enumerate(LAYERS) for part in parts}
# Within a layer, these and no others.
SIBLINGS = {
    ("losses", "posterior"),
    ("gekf", "posterior"),
    ("tabular", "posterior"),
    ("tabular", "exploration"),
}

FLAGS = {"tyro", "argparse", "absl", "click", "getopt", "optparse"}
CLOCKS = {"time", "datetime"}
UNSAFE = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
RANDOM_STATE = {"random", "secrets"}


def module_name(path, root):
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(source, name, *, is_package=False):
    """Full names of everything that a module's source imports, wherever in it."""
    package = name.split(".") if is_package else name.split(".")[:-1]
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names |= {f"{base}.{alias.name}" for alias in node.names}
    return names


def library_modules():
    return {
        module_name(path, ROOT): imported(
            path.read_text(), module_name(path, ROOT), is_package=path.name == "__init__.py"
        )
        for path in sorted(PACKAGE.rglob("*.py"))
    }


MODULES = library_modules()
every_module = pytest.mark.parametrize("module", MODULES)


def part_of(name):
    """`agents` of `bqfd_jax.agents.td.lookaheads`."""
    return name.split(".")[1]


def faults(module, names):
    """Imports of the package that break the order of the layers."""
    broken = []
    own = part_of(module)
    for name in sorted(names):
        if name.split(".")[0] != "bqfd_jax":
            continue
        # From the package itself comes whatever is named after it.
        other = part_of(name) if "." in name else None
        if other == own or (own, other) in SIBLINGS:
            continue
        if LAYER_OF.get(other, len(LAYERS)) >= LAYER_OF[own]:
            broken.append(name)
    return broken


def test_the_walk_finds_the_package():
    assert {"bqfd_jax", "bqfd_jax.types", "bqfd_jax.agents", "bqfd_jax.agents.bqfd"} <= set(MODULES)
    assert "bqfd_jax.replay.rows" in MODULES["bqfd_jax.replay.prioritized"]
    assert "bqfd_jax.types.Batch" in MODULES["bqfd_jax.agents.td"]


def test_the_walk_reads_every_kind_of_import():
    source = (
        "import os.path as p\nfrom a.b import c\nfrom . import d\nfrom .e import f\n"
        "from .. import g\nfrom ..h import i\ndef lazy():\n    import j\n"
    )
    assert imported(source, "x.y.z") == {
        "os.path", "a.b.c", "x.y.d", "x.y.e.f", "x.g", "x.h.i", "j"
    }  # fmt: skip
    assert imported("from . import a", "x.y", is_package=True) == {"x.y.a"}


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("bqfd_jax.types", "bqfd_jax.losses"),
        ("bqfd_jax.losses", "bqfd_jax.networks.Network"),
        ("bqfd_jax.posterior", "bqfd_jax.losses"),
        ("bqfd_jax.schedules", "bqfd_jax.exploration"),
        ("bqfd_jax.replay.rows", "bqfd_jax.agents.td"),
        ("bqfd_jax.agents.td", "bqfd_jax.training.on_device"),
        ("bqfd_jax.training.on_device", "bqfd_jax.runs.plots"),
        ("bqfd_jax.agents.td", "bqfd_jax.make_agent"),
        ("bqfd_jax.agents.td", "bqfd_jax"),
    ],
)
def test_a_fault_is_found(module, name):
    assert faults(module, {name, "jax", "bqfd_jax.types.Array"} - {module}) == [name]


@every_module
def test_imports_follow_the_layers(module):
    if module == "bqfd_jax":
        return
    assert part_of(module) in LAYER_OF, f"{module} has no layer yet: give it one"
    assert faults(module, MODULES[module]) == []


@every_module
def test_the_library_reads_no_flags_and_no_clock(module):
    roots = {name.split(".")[0] for name in MODULES[module]}
    # Runs tell how long they took; nothing else may depend on the time.
    clocks = set() if module.startswith("bqfd_jax.runs.") else CLOCKS
    assert not roots & (FLAGS | clocks | UNSAFE | RANDOM_STATE)
    assert "sys.argv" not in MODULES[module]
    assert "experiments" not in roots
    if module not in ("bqfd_jax.envs.atari", "bqfd_jax.envs.gym_making"):
        assert not roots & {"envpool", "gym", "gymnasium"}
    if module != "bqfd_jax.envs.ale":
        assert "ale_py" not in roots


@pytest.mark.parametrize(
    ("part", "stranger"),
    [
        ("losses", "flax"),
        ("posterior", "flax"),
        ("losses", "bqfd_jax.networks"),
        ("replay", "flax"),
        ("replay", "optax"),
        ("replay", "bqfd_jax.networks"),
        ("agents", "bqfd_jax.envs"),
        ("envs", "bqfd_jax.replay"),
        ("envs", "flax"),
    ],
)
def test_strangers(part, stranger):
    modules = [name for name in MODULES if name != "bqfd_jax" and part_of(name) == part]
    assert modules
    for module in modules:
        for name in MODULES[module]:
            assert not f"{name}.".startswith(f"{stranger}."), f"{module} imports {name}"


# What the library must leave to commands, and the files that may do it all the same.
COMMANDS_ONLY = {
    "sys.exit": {"console.py"},
    "sys.argv": set(),
    "jax.config.update": {"console.py"},
    "signal.signal": {"runs/sinks.py"},
    "print": {"console.py"},
    "input": set(),
}


def dotted(node):
    """`sys.exit` of the expression that says so; None for others."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (above := dotted(node.value)) is not None:
        return f"{above}.{node.attr}"
    return None


def used(source):
    """All that is named in a module's code, with the names in front of the dots."""
    return {dotted(node) for node in ast.walk(ast.parse(source))} - {None}


def test_the_walk_reads_what_is_used():
    assert used("def f():\n    a.b.exit(c)\n    g().h") >= {"a.b.exit", "a.b", "a", "c"}
    assert "h" not in used("g().h")


@pytest.mark.parametrize("name", COMMANDS_ONLY)
def test_the_library_leaves_the_process_to_its_caller(name):
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        # By its full name, or imported by the last of it.
        if name in used(path.read_text()) or name in MODULES[module_name(path, ROOT)]
    }
    assert found == COMMANDS_ONLY[name]


@every_module
def test_only_sinks_know_signals(module):
    assert "signal" not in MODULES[module] or module == "bqfd_jax.runs.sinks"


def experiment_modules():
    return {
        module_name(path, ROOT): imported(
            path.read_text(), module_name(path, ROOT), is_package=path.name == "__init__.py"
        )
        for path in sorted(EXPERIMENTS.rglob("*.py"))
    }


EXPERIMENT_MODULES = experiment_modules()
NAMES = {path.parent.name for path in EXPERIMENTS.glob("*/__init__.py")}
every_experiment = pytest.mark.parametrize("module", EXPERIMENT_MODULES)


def foreign(module, names):
    """Imports of one experiment by another; what stands beside them is no experiment."""
    own = module.split(".")[1:2]
    found = []
    for name in sorted(names):
        root, *parts = name.split(".")
        if root == "experiments" and parts and parts[0] in NAMES - {*own}:
            found.append(name)
    return found


def test_experiments_are_packages_that_can_be_run():
    assert {
        "atari", "gym", "deep_sea", "expert_quality", "tabular", "trust", "demos", "benchmark",
        "sweep", "report",
    } == NAMES  # fmt: skip
    for name in NAMES:
        assert f"experiments.{name}.__main__" in EXPERIMENT_MODULES
    assert {path.name for path in EXPERIMENTS.glob("*.py")} == {
        "__init__.py", "__main__.py", "commands.py"
    }  # fmt: skip


def test_an_experiment_that_imports_another_is_found():
    source = "from ..atari import x\nfrom experiments.atari.y import z\nfrom .. import commands\n"
    names = imported(source + "from .own import a", "experiments.gym.training")
    assert foreign("experiments.gym.training", names) == [
        "experiments.atari.x",
        "experiments.atari.y.z",
    ]


@every_experiment
def test_no_experiment_imports_another(module):
    assert foreign(module, EXPERIMENT_MODULES[module]) == []
    # The wheel has them under another name, so that they may name each other only relatively.
    text = ROOT.joinpath(*module.split("."))
    text = (text / "__init__.py" if text.is_dir() else text.with_suffix(".py")).read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and not node.level:
            assert (node.module or "").split(".")[0] != "experiments", module
        if isinstance(node, ast.Import):
            assert not any(alias.name.split(".")[0] == "experiments" for alias in node.names)


@every_experiment
def test_experiments_do_not_reach_into_private_names(module):
    for name in EXPERIMENT_MODULES[module]:
        if name.startswith("bqfd_jax"):
            assert not any(part.startswith("_") for part in name.split(".")), name


def run_python(code):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()


def test_importing_starts_no_device_and_no_stranger():
    # The number of devices can be chosen only as long as none has been started.
    lines = run_python(
        "import sys, bqfd_jax, jax\n"
        "jax.config.update('jax_num_cpu_devices', 3)\n"
        "print(len(jax.devices('cpu')))\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))\n"
    )
    assert lines[0] == "3"
    loaded = set(lines[1].split())
    assert "bqfd_jax" in loaded
    assert not loaded & {
        "envpool",
        "ale_py",
        "tyro",
        "experiments",
        "tensorboardX",
        "gymnasium",
        "bsuite",
        "h5py",
    }


@pytest.mark.parametrize("name", bqfd_jax.__all__)
def test_public_names_exist_and_say_what_they_are(name):
    value = getattr(bqfd_jax, name)
    doc = inspect.getdoc(value) or ""
    # Neither nothing nor the signature that dataclasses and named tuples write for themselves.
    assert len(doc) > 10
    assert not doc.startswith(f"{name}(")
    inherited = [base.__doc__ for base in getattr(value, "__mro__", ())[1:]]
    assert value.__doc__ not in inherited


def test_public_names_are_all_listed_once():
    assert len(set(bqfd_jax.__all__)) == len(bqfd_jax.__all__)
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    given = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert given == set(bqfd_jax.__all__)


@every_module
def test_every_module_says_what_it_is_for(module):
    path = ROOT.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    assert ast.get_docstring(ast.parse(path.read_text()))
