"""Settings that every test shares."""

import atexit
import os
import shutil
import sys
import tempfile

# What the tests run is tiny: nearly all of their time would go into optimising it ...
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
)
# ... and into compiling the same again in another test, worker or process.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="bqfd-jax-compiled-")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
    # Workers inherit the folder, so only who made it gets here.
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)

import jax
import pytest

from bqfd_jax.console import run_main

# Silent broadcasting of [B] against [B, 1] hides indexing mistakes.
jax.config.update("jax_numpy_rank_promotion", "raise")

# Files that take long though their names come late: begun last, one worker would wait for another.
_EARLY = ("test_on_device.py", "test_on_host.py", "test_readme.py", "test_tabular.py")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name not in _EARLY)


@pytest.fixture
def run_here(capsys, monkeypatch):
    """Gives a command's exit code and what it printed, without a process that must start first."""

    def run(main, *options) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["experiment", *map(str, options)])
        code = 0
        try:
            run_main(main)
        except SystemExit as leaving:
            code = leaving.code
        captured = capsys.readouterr()
        return code, captured.err + captured.out

    return run
