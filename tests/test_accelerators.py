"""What can be known of GPUs and TPUs without one: programs lower for them; what is in them.

The slow test compiles for a TPU that is only described; it needs the extra `tpu`.
"""

import re

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import topologies

from bqfd_jax import networks
from bqfd_jax.agents import make_agent
from bqfd_jax.agents.presets import AGENTS, agent_config
from bqfd_jax.envs import deep_sea
from bqfd_jax.replay import make_replay
from bqfd_jax.runs.deep_sea import AgentsConfig, make_training
from bqfd_jax.training import on_host
from bqfd_jax.types import Row

PLATFORMS = ("cuda", "tpu")
FRAME = (84, 84)
# Kernels of the device itself; every other custom call might be one into python.
DEVICE_KERNELS = {"cu_threefry2x32_ffi"}
# Words of StableHLO, and of its attributes, that name what leaves the device.
LEAVES_DEVICE = r"callback|infeed|outfeed|stablehlo\.send|stablehlo\.recv|pinned_host|unpinned_host"


def program(function, *arguments) -> str:
    """What a compiled function is for a GPU and a TPU, as text."""
    return jax.export.export(function, platforms=PLATFORMS)(*arguments).mlir_module()


def faults(module: str) -> list[str]:
    """What an accelerator should not be asked for."""
    calls = set(re.findall(r"custom_call @([\w.]+)", module)) - DEVICE_KERNELS
    found = re.findall(rf"\bf64\b|xf64\b|{LEAVES_DEVICE}", module)
    return sorted(calls | set(found))


def demonstration(num_rows) -> Row:
    return Row(
        frame=jnp.zeros((num_rows, *FRAME), jnp.uint8),
        action=jnp.zeros(num_rows, jnp.int32),
        reward=jnp.zeros(num_rows, jnp.float32),
        discount=jnp.zeros(num_rows, jnp.float32),
        is_first=jnp.zeros(num_rows, bool),
        is_last=jnp.zeros(num_rows, bool),
    )


def atari_program(agent, preset, *, torso, hidden, rows_per_lane, num_lanes, num_demo_rows):
    """A host trainer, and the shapes of its state and of what it is told; nothing is allocated."""
    config = agent_config(preset, agent, game="Breakout")
    replay = make_replay(
        frame_shape=FRAME,
        frame_dtype=jnp.uint8,
        rows_per_lane=rows_per_lane,
        num_lanes=num_lanes,
        num_demo_rows=num_demo_rows,
        stack=4,
        **config.replay_options(),
    )
    network = networks.atari_network(4, torso=torso, hidden=hidden)
    made = make_agent(network, config, replay)

    def init():
        return on_host.init(made, replay, jax.random.key(0), demonstration(num_demo_rows))

    seen = on_host.Seen(
        frame=jax.ShapeDtypeStruct((num_lanes, *FRAME), jnp.uint8),
        reward=jax.ShapeDtypeStruct((num_lanes,), jnp.float32),
        discount=jax.ShapeDtypeStruct((num_lanes,), jnp.float32),
        is_first=jax.ShapeDtypeStruct((num_lanes,), bool),
        is_last=jax.ShapeDtypeStruct((num_lanes,), bool),
        action=jax.ShapeDtypeStruct((num_lanes,), jnp.int32),
    )
    return on_host.make_host_trainer(made, replay), jax.eval_shape(init), seen


# What differs between agents, and what does not.
PHASES = [(agent, phase) for agent in AGENTS for phase in ("interact", "update")]
PHASES += [("bqfd", phase) for phase in ("begin", "iterate", "updates", "pretrain", "read")]


@pytest.mark.parametrize(("agent", "phase"), PHASES)
def test_training_beside_a_host_lowers_for_accelerators(agent, phase):
    trainer, state, seen = atari_program(
        agent, "paper", torso="nature", hidden=16, rows_per_lane=64, num_lanes=2, num_demo_rows=32
    )
    arguments = {
        "begin": (seen,),
        "interact": (seen,),
        "iterate": (seen, jax.ShapeDtypeStruct((), jnp.int32)),
    }.get(phase, ())
    function = trainer.updates(2) if phase == "updates" else getattr(trainer, phase)
    assert faults(program(function, state, *arguments)) == []


@pytest.mark.parametrize("agent", AGENTS)
def test_training_on_deep_sea_lowers_for_accelerators(agent):
    config = AgentsConfig(size=4, episodes=2, torso=(8, 8), hidden=8)
    _, _, trainer = make_training(config, agent_config("deep_sea", agent), num_demo_rows=0)
    params = deep_sea.treasure(config.size)
    state = jax.eval_shape(trainer.init, jax.random.key(0), params)
    assert faults(program(jax.jit(trainer.run, static_argnums=2), state, params, 8)) == []


def test_what_leaves_the_device_is_found():
    def calls_back(x):
        return jax.pure_callback(lambda x: x, x, x)

    def prints(x):
        jax.debug.print("{}", x)
        return x

    x = jnp.zeros(3)
    assert faults(program(jax.jit(lambda x: x + 1.0), x)) == []
    for function in map(jax.jit, (calls_back, prints)):
        assert any("callback" in fault for fault in faults(function.lower(x).as_text()))
    with jax.enable_x64(True):
        assert faults(program(jax.jit(jnp.sin), jnp.zeros(3, jnp.float64))) == ["xf64"]


@pytest.mark.slow
def test_the_papers_update_fits_a_tpu(monkeypatch):
    """Compiled ahead of time, from shapes alone, for a TPU that is not there."""
    pytest.importorskip("libtpu")
    # Nobody answers for the TPU that it would otherwise look for.
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
    topology = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
    device = jax.sharding.SingleDeviceSharding(topology.devices[0])
    trainer, state, _ = atari_program(
        "bqfd",
        "paper",
        torso="nature",
        hidden=512,
        rows_per_lane=125_000,
        num_lanes=8,
        num_demo_rows=2_000,
    )
    state = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device), state
    )
    needed = trainer.update.lower(state).compile().memory_analysis()
    assert needed.argument_size_in_bytes > 7e9
    # All of it stays where it is ...
    assert needed.alias_size_in_bytes > 0.999 * needed.argument_size_in_bytes
    # ... and beside it there is room for what an update needs, but not for the frames once more.
    assert needed.temp_size_in_bytes <= 0.5e9
