"""What commands share: a sink that prints, Ctrl-C, errors in words, exit codes.

Only commands use this.  Below it only the sinks of `runs` print and catch signals, for those who
pass them, and nothing ends the process.
"""

import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax

from bqfd_jax.checks import OptionError
from bqfd_jax.demos import default_cache_dir
from bqfd_jax.envs.host import HostEnvironmentError
from bqfd_jax.files import FileError
from bqfd_jax.runs.checkpoint import CheckpointError
from bqfd_jax.runs.errors import RunError, Stopped, UsageError
from bqfd_jax.runs.machine import cores
from bqfd_jax.runs.sinks import Terminal, stop_signals


@contextmanager
def terminal(when: str = "soon, after a checkpoint") -> Iterator[Terminal]:
    """A sink that prints and draws bars, and asks to stop after the first Ctrl-C.

    Args:
      when: what the person who pressed it is told, "stopping ...".
    """

    def tell() -> None:
        print(f"\nstopping {when}; again to stop at once", file=sys.stderr)

    with stop_signals(tell) as stop_asked:
        yield Terminal(stop_asked)


def run_main(main: Callable[[], None]) -> None:
    """Runs a command and turns expected failures into a message and an exit code."""
    quieten_strangers()
    try:
        main()
    except OptionError as error:
        _leave(f"error: --{error.name.replace('_', '-')}{str(error)[len(error.name) :]}", 2)
    except (UsageError, FileError) as error:
        _leave(f"error: {error}", 2)
    except (RunError, CheckpointError, HostEnvironmentError) as error:
        _leave(f"error: {error}", 1)
    except Stopped as stop:
        _leave(str(stop), 130)
    except KeyboardInterrupt:
        _leave("stopped at once; a checkpoint, if there is one, stays: see `bqfd resume`", 130)
    except BrokenPipeError:
        # Whoever read our output is gone; there is nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        _leave(f"error: {error}; what was saved before stays", 1)


def quieten_strangers() -> None:
    """Keeps other packages from speaking in our name; call it before they are loaded."""
    # What pygame says of itself would look like ours.
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    # No command opens a window, and looking for a screen SDL complains as if we did.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


def keep_compiled() -> None:
    """Keeps what jax compiles for other processes of this machine, unless somebody says where."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        # A folder per machine: homes are often shared, and processors differ.
        folder = default_cache_dir().parent / "compiled" / platform.node()
        jax.config.update("jax_compilation_cache_dir", str(folder))


def use_all_cores() -> None:
    """Makes every CPU core a device, so that runs are spread over them; call it first of all."""
    jax.config.update("jax_num_cpu_devices", cores())


def _leave(message: str, code: int) -> None:
    print(message, file=sys.stderr)
    sys.exit(code)
