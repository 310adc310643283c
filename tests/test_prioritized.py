"""The replay beside plain lists of episodes; its frames say (lane, time, episode)."""

import dataclasses
import functools
import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqfd_jax.replay import check_demonstrations, check_discounts, make_replay, sum_tree
from bqfd_jax.replay import prioritized as replay_lib
from bqfd_jax.types import Row

KEY = jax.random.key(0)
ABSURD = 1e9


def compiled(**sizes):
    """A replay with its functions jitted, once per set of sizes; nothing is donated."""
    return compiled_once(tuple(sorted(sizes.items())))


@functools.cache
def compiled_once(sizes):
    replay = make_replay(**dict(sizes))
    return types.SimpleNamespace(
        plain=replay,
        init=jax.jit(replay.init),
        add=jax.jit(replay.add),
        sample=jax.jit(replay.sample, static_argnums=2),
        sample_demonstrations=jax.jit(replay.sample_demonstrations, static_argnums=2),
        set_priorities=jax.jit(replay.set_priorities),
        count_visits=jax.jit(replay.count_visits),
    )


@dataclasses.dataclass
class Step:
    """One row as the reference keeps it."""

    frame: tuple
    action: int = 0
    reward: float = 0.0
    discount: float = 1.0
    is_first: bool = False
    is_last: bool = False
    slot: int = -1  # where the replay keeps it
    time: int = 0


def as_rows(steps):
    """Steps as a `Row` with one leading axis."""
    dtypes = {
        "frame": np.int32,
        "action": np.int32,
        "reward": np.float32,
        "discount": np.float32,
        "is_first": bool,
        "is_last": bool,
    }
    columns = {k: np.asarray([getattr(s, k) for s in steps], d) for k, d in dtypes.items()}
    return Row(**columns)


def random_steps(rng, lane, may_be_abandoned=True):
    """An endless stream of episodes of every kind; returns are exact in float32."""
    kinds = ["terminates", "terminates, with a terminal row", "is cut off", "is abandoned"]
    time = 0
    for episode in itertools.count():
        kind = kinds[rng.integers(0, 4 if may_be_abandoned else 3)]
        length = int(rng.integers(1, 9) if rng.random() < 0.85 else rng.integers(20, 40))
        for k in range(length + (kind == "terminates, with a terminal row")):
            step = Step(
                frame=(lane, 2**24 + time, episode),  # float32 would round it
                action=int(rng.integers(0, 18)),
                reward=float(rng.integers(-8, 9)),
                discount=float(rng.choice([1, 0.5, 0.25])),
                is_first=k == 0,
                time=time,
            )
            if kind.startswith("terminates") and k == length - 1:
                step.discount = 0.0
            if k == length or (kind == "is cut off" and k == length - 1):
                step.is_last = True  # nothing starts here, so nothing else it says counts
                step.action, step.reward, step.discount = -77, ABSURD, float(rng.choice([0, 1]))
            yield step
            time += 1


def random_demonstrations(rng, num_rows):
    """`num_rows` rows of whole episodes."""
    steps = list(itertools.islice(random_steps(rng, -1, may_be_abandoned=False), num_rows))
    last = steps[-1]
    if not last.is_last:
        last.discount = 0.0
    return steps


def episodes_of(steps):
    episodes = []
    for step in steps:
        if step.is_first:
            episodes.append([])
        episodes[-1].append(step)
    return episodes


class Reference:
    """A replay of whole episodes in lists, which knows of no ring."""

    def __init__(self, *, stack, n_step, path_steps, num_lanes, rows_per_lane, demonstrations):
        self.stack, self.n_step, self.path_steps = stack, n_step, path_steps
        self.rows_per_lane = rows_per_lane
        self.num_demo_rows = len(demonstrations)
        for slot, step in enumerate(demonstrations):
            step.slot = slot
        self.demonstrations = episodes_of(demonstrations)
        self.lanes = [[] for _ in range(num_lanes)]
        self.num_added = 0
        self.visits = np.ones(self.num_demo_rows)

    def add(self, steps):
        self.num_added += 1
        for lane, (episodes, step) in enumerate(zip(self.lanes, steps, strict=True)):
            region = self.num_demo_rows + lane * self.rows_per_lane
            step.slot = region + step.time % self.rows_per_lane
            if step.is_first:
                if episodes and episodes[-1][-1].discount > 0:
                    episodes[-1][-1].is_last = True
                episodes.append([])
            episodes[-1].append(step)

    def drawable(self):
        """Slot -> (episode, step of it) of every transition that may be drawn."""
        found = {}
        for episode in self.demonstrations:
            found |= {s.slot: (episode, k) for k, s in enumerate(episode) if not s.is_last}
        oldest_kept, newest = self.num_added - self.rows_per_lane, self.num_added - 1
        for episodes in self.lanes:
            for episode in episodes:
                for k, step in enumerate(episode):
                    successor_is_there = step.time + self.n_step <= newest
                    stack_is_there = step.time - (self.stack - 1) >= oldest_kept
                    if successor_is_there and stack_is_there and not step.is_last:
                        found[step.slot] = (episode, k)
        return found

    def observation(self, episode, k):
        stacked = [episode[max(j, 0)] for j in range(k - self.stack + 1, k + 1)]
        if episode[k].slot >= self.num_demo_rows:
            oldest_kept = self.num_added - self.rows_per_lane
            assert all(step.time >= oldest_kept for step in stacked), "a frame is overwritten"
        return [step.frame for step in stacked]

    def transition(self, episode, k):
        """What `Batch` should hold; `None` where it does not matter."""
        step = episode[k]
        taken = list(itertools.takewhile(lambda s: not s.is_last, episode[k : k + self.n_step]))
        discounts = np.cumprod([1.0] + [s.discount for s in taken])
        landing = k + len(taken)
        assert landing < len(episode) or discounts[-1] == 0, "the successor is not there yet"
        missing = [None] * max(self.path_steps - len(taken), 0)
        path = taken[: self.path_steps]
        on_the_way = [self.observation(episode, k + j) for j in range(1, len(path))]
        expert = step.slot < self.num_demo_rows
        return {
            "observation": self.observation(episode, k),
            "action": step.action,
            "reward": step.reward,
            "discount": step.discount,
            "next_observation": self.observation(episode, k + 1) if step.discount else None,
            "n_step_return": np.dot(discounts[:-1], [s.reward for s in taken]),
            "n_step_discount": discounts[-1],
            "n_step_observation": self.observation(episode, landing) if discounts[-1] else None,
            "path_observation": (on_the_way + missing)[: self.path_steps - 1],
            "path_action": [s.action for s in path] + missing,
            "path_discount": [*discounts[: len(path)], *[0] * len(missing)],
            "path_visit_count": [self.visits[s.slot] if expert else None for s in path] + missing,
            "is_expert": expert,
        }


def assert_agree(found, expected, name):
    if expected is None:
        return
    if isinstance(expected, list) and None in expected:
        assert len(found) == len(expected), name
        for entry, value in zip(found, expected, strict=True):
            assert_agree(entry, value, name)
    elif isinstance(expected, list) and not expected:
        assert len(found) == 0, name
    else:
        assert np.array_equal(found, expected), f"{name} is {found} instead of {expected}"


def assert_one_episode_each(batch):
    """No frame of another lane or episode, not even where a discount of 0 hides it."""
    lane_and_episode = batch.observation[:, -1, ::2]
    for name in ("observation", "next_observation", "n_step_observation", "path_observation"):
        frames = getattr(batch, name).reshape(len(batch.index), -1, 3)
        assert (frames[:, :, ::2] == lane_and_episode[:, None]).all(), name


# Among them the tightest rings there may be: n_step + stack + 1 rows.
@pytest.mark.parametrize(
    ("stack", "n_step", "path_steps", "num_lanes", "rows_per_lane", "num_demo_rows"),
    [
        (1, 1, 1, 1, 3, 0),
        (4, 1, 1, 2, 6, 15),
        (1, 5, 5, 2, 7, 18),
        (2, 3, 3, 3, 9, 20),
        (3, 2, 1, 2, 12, 0),
        (4, 5, 2, 1, 23, 20),
    ],
)
def test_beside_lists_of_episodes(
    stack, n_step, path_steps, num_lanes, rows_per_lane, num_demo_rows
):
    sizes = dict(stack=stack, n_step=n_step, path_steps=path_steps, num_lanes=num_lanes)
    sizes |= dict(rows_per_lane=rows_per_lane)
    replay = compiled(frame_shape=(3,), frame_dtype=np.int32, num_demo_rows=num_demo_rows, **sizes)
    rng = np.random.default_rng(stack + 10 * n_step)
    demonstrations = random_demonstrations(rng, num_demo_rows) if num_demo_rows else []
    state = replay.init(as_rows(demonstrations) if demonstrations else None)
    reference = Reference(demonstrations=demonstrations, **sizes)
    lanes = [random_steps(rng, lane) for lane in range(num_lanes)]
    # All leaves are equal, so every one of them holds a whole part of a batch of this size.
    batch_size = 2 * replay.plain.layout.num_rows
    num_draws = 0

    for t in range(150):
        steps = [next(lane) for lane in lanes]
        state = replay.add(state, as_rows(steps))
        reference.add(steps)
        expected = reference.drawable()
        assert set(np.flatnonzero(state.tree[-1])) == set(expected)
        if not expected or rng.random() < 0.6:
            continue

        batch = jax.device_get(replay.sample(jax.random.fold_in(KEY, t), state, batch_size))
        drawn, at = np.unique(batch.index, return_index=True)
        assert set(drawn) == set(expected)
        assert_one_episode_each(batch)
        for slot, b in zip(drawn, at, strict=True):
            for name, value in reference.transition(*expected[slot]).items():
                assert_agree(getattr(batch, name)[b], value, name)
        state = replay.count_visits(state, batch.index)
        np.add.at(reference.visits, batch.index[batch.index < num_demo_rows], 1)
        num_draws += len(drawn)

    assert num_draws > 100
    jax.tree.map(
        lambda rows, given: np.testing.assert_array_equal(rows[:num_demo_rows], given),
        state.rows,
        as_rows(demonstrations) if demonstrations else jax.tree.map(lambda x: x[:0], state.rows),
    )
    np.testing.assert_array_equal(state.visit_count, reference.visits)


# A small replay for all that follows.  Slots 0-5 are demonstrations, of which 5 starts nothing;
# then come two lanes of 8, and a row can be drawn when two more have followed it.
SIZES = dict(
    frame_shape=(3,),
    frame_dtype=np.int32,
    rows_per_lane=8,
    num_lanes=2,
    num_demo_rows=6,
    stack=2,
    n_step=2,
    priority_exponent=0.5,
)
DEMONSTRATIONS = as_rows(
    [
        Step(frame=(-1, 0, 0), is_first=True),
        Step(frame=(-1, 1, 0)),
        Step(frame=(-1, 2, 0), discount=0.0),
        Step(frame=(-1, 3, 1), is_first=True),
        Step(frame=(-1, 4, 1)),
        Step(frame=(-1, 5, 1), is_last=True),
    ]
)
LANE_0, LANE_1 = 6, 14
BATCH = 512


def small(demo_priority=1.0):
    replay = compiled(**SIZES)
    return replay, replay.init(DEMONSTRATIONS, demo_priority)


def add_rows(replay, state, num_rows, begin=0, num_lanes=2, first=(0,)):
    """One endless episode in every lane."""
    for t in range(begin, begin + num_rows):
        steps = [Step(frame=(lane, t, 0), is_first=t in first) for lane in range(num_lanes)]
        state = replay.add(state, as_rows(steps))
    return state


@jax.jit
def draw(tree):
    return sum_tree.sample(KEY, tree, 64)


def leaves(state):
    return np.asarray(state.tree[-1])[: state.rows.action.shape[0]]


def test_every_number_of_a_small_replay():
    replay, state = small()
    np.testing.assert_array_equal(leaves(state), [1, 1, 1, 1, 1, 0] + [0] * 16)
    state = add_rows(replay, state, 2)
    assert not leaves(state)[LANE_0:].any()
    state = add_rows(replay, state, 3, begin=2)
    np.testing.assert_array_equal(np.flatnonzero(leaves(state)[LANE_0:LANE_1]), [0, 1, 2])
    # The tenth row takes place 1; the row in place 2 stacks on it, and 0 and 1 are not complete.
    state = add_rows(replay, state, 5, begin=5)
    np.testing.assert_array_equal(np.flatnonzero(leaves(state)[LANE_0:LANE_1]), [3, 4, 5, 6, 7])
    np.testing.assert_array_equal(leaves(state)[LANE_0:LANE_1], leaves(state)[LANE_1:])
    assert int(state.position) == 2
    assert int(state.num_added) == 8


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_smaller_n_ends_the_walk_early(n):
    replay = make_replay(**SIZES | dict(n_step=3, num_demo_rows=4))
    # From row 0: 1, then 0.5 * 10, then 0.25 * 100; nobody may look at the last row's outcome.
    rewards = (1.0, 10.0, 100.0, 1e9)
    demonstration = as_rows(
        [
            Step(frame=(-1, k, 0), reward=r, discount=0.5, is_first=k == 0, is_last=k == 3)
            for k, r in enumerate(rewards)
        ]
    )
    state = replay.init(demonstration)
    index, ones = jnp.array([0, 2]), jnp.ones(2)
    gather = jax.jit(lambda n: replay_lib.gather(sizes_of(replay), state, index, ones, n))
    batch = gather(jnp.int32(n))
    returns = {1: [1, 100], 2: [6, 100], 3: [31, 100]}
    np.testing.assert_allclose(batch.n_step_return, returns[n])
    np.testing.assert_allclose(batch.n_step_discount, [0.5**n, 0.5])
    np.testing.assert_array_equal(batch.n_step_observation[:, -1, 1], [n, 3])
    np.testing.assert_allclose(batch.reward, [1, 100])
    if n == 3:
        whole = jax.jit(lambda: replay_lib.gather(sizes_of(replay), state, index, ones))()
        jax.tree.map(np.testing.assert_array_equal, batch, whole)


def sizes_of(replay):
    return replay_lib.Sizes(**{name: getattr(replay, name) for name in replay_lib.Sizes._fields})


def test_an_episode_that_was_left_open_is_cut_there():
    replay, state = small(demo_priority=0.0)
    state = add_rows(replay, state, 6, first=(0, 3))
    np.testing.assert_array_equal(np.flatnonzero(state.rows.is_last), [5, LANE_0 + 2, LANE_1 + 2])
    np.testing.assert_array_equal(np.flatnonzero(leaves(state)[LANE_0:LANE_1]), [0, 1, 3])
    batch = replay.sample(KEY, state, BATCH)
    second = int(np.flatnonzero(batch.index == LANE_0 + 1)[0])
    # Its two steps end after one, in the row where the episode was cut.
    np.testing.assert_array_equal(batch.n_step_observation[second, :, 1], [1, 2])
    assert batch.n_step_discount[second] == 1


def test_an_episode_that_has_ended_is_not_cut_again():
    replay, state = small()
    for t in range(6):
        step = Step(frame=(0, t, t // 3), is_first=t % 3 == 0, discount=float(t % 3 != 2))
        state = replay.add(state, as_rows([step, step]))
    np.testing.assert_array_equal(np.flatnonzero(state.rows.is_last), [5])
    np.testing.assert_array_equal(np.flatnonzero(leaves(state)[LANE_0:LANE_1]), [0, 1, 2, 3])


def test_visits_start_at_one_and_count_demonstrations_only():
    replay, state = small()
    np.testing.assert_array_equal(state.visit_count, np.ones(6))
    state = replay.count_visits(state, np.asarray([0, 4, 0, LANE_0, 21, 0, 2]))
    np.testing.assert_array_equal(state.visit_count, [4, 1, 2, 1, 2, 1])


def test_new_rows_get_the_largest_priority_so_far():
    replay, state = small()
    state = add_rows(replay, state, 3)
    assert leaves(state)[LANE_0] == 1
    state = replay.set_priorities(state, np.asarray([0, 1]), np.asarray([0.25, 4.0]))
    state = add_rows(replay, state, 1, begin=3)
    state = replay.set_priorities(state, np.asarray([0, 1]), np.asarray([0.25, 0.25]))
    state = add_rows(replay, state, 1, begin=4)
    state = replay.set_priorities(state, np.asarray([2, 3]), np.asarray([9.0, 0.25]))
    state = add_rows(replay, state, 1, begin=5)
    assert state.max_priority == 9
    np.testing.assert_array_equal(leaves(state)[LANE_0:LANE_1], [1, 2, 2, 3, 0, 0, 0, 0])
    np.testing.assert_array_equal(leaves(state)[:6], [0.5, 0.5, 3, 0.5, 1, 0])


def test_rows_that_cannot_be_drawn_take_no_priority():
    replay, state = small()
    state = add_rows(replay, state, 8 + 3)
    # Overwritten and not complete, retired because of its stack, never a transition.
    gone = np.asarray([LANE_0 + 1, LANE_0 + 2, LANE_1 + 3, 5])
    assert not leaves(state)[gone].any()
    there = LANE_0 + 4
    state = replay.set_priorities(state, np.append(gone, there), np.full(5, 16.0))
    assert not leaves(state)[gone].any()
    assert leaves(state)[there] == 4
    assert not np.isin(replay.sample(KEY, state, BATCH).index, gone).any()
    # The next row to complete is a new one and comes in with the largest priority.
    state = add_rows(replay, state, 1, begin=11)
    assert leaves(state)[LANE_0 + 1] == 4


@pytest.mark.parametrize("exponent", [0.0, 0.25, 1.0])
def test_priority_exponent(exponent):
    replay = compiled(**SIZES | dict(priority_exponent=exponent))
    state = replay.init(DEMONSTRATIONS, 81.0)
    np.testing.assert_allclose(leaves(state)[:6], [81**exponent] * 5 + [0], rtol=1e-6)
    state = replay.set_priorities(state, jnp.arange(6), jnp.asarray([16.0, 0, 1, 1e-6, 256, 7]))
    expected = [16**exponent, 0, 1, 1e-6**exponent, 256**exponent, 0]
    np.testing.assert_allclose(leaves(state)[:6], expected, rtol=1e-5)
    assert not np.isin(draw(state.tree), [1, 5]).any()


def test_draws_follow_the_priorities():
    replay, state = small()
    state = add_rows(replay, state, 6)
    index = np.asarray([0, 1, 2, 3, 4, LANE_0, LANE_0 + 1, LANE_1 + 3])
    priority = np.asarray([1, 4, 9, 16, 0, 25, 100, 49.0])
    state = replay.set_priorities(state, index, priority)
    share = np.zeros(22)
    share[index] = np.sqrt(priority)
    share[[LANE_0 + 2, LANE_0 + 3, LANE_1, LANE_1 + 1, LANE_1 + 2]] = 1  # new when 1 was the most
    share *= BATCH / share.sum()
    counts = np.stack(
        [
            np.bincount(replay.sample(jax.random.fold_in(KEY, i), state, BATCH).index, minlength=22)
            for i in range(40)
        ]
    )
    assert (np.abs(counts - share) < 2).all()  # each batch is stratified,
    assert (np.abs(counts.mean(0) - share) < 0.5).all()  # and fair where parts meet
    assert not counts[:, share == 0].any()


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_importance_weights_by_hand(beta):
    replay, state = small()
    priority = np.asarray([4, 16, 64, 256, 1024.0])
    state = replay.set_priorities(state, np.arange(5), priority)
    batch = replay.sample(KEY, state, BATCH, beta)
    assert set(np.asarray(batch.index)) == set(range(5))
    probability = np.asarray([1, 2, 4, 8, 16]) / 31
    weight = (22 * probability) ** -beta
    expected = (weight / weight.max())[np.asarray(batch.index)]
    np.testing.assert_allclose(batch.importance_weight, expected, rtol=1e-5)
    assert batch.importance_weight.max() == 1


def test_the_largest_weight_is_that_of_the_batch():
    replay, state = small()
    # Rows 0-3 are so rare that they are not drawn.
    state = replay.set_priorities(state, np.arange(5), np.asarray([1e-20] * 4 + [9.0]))
    batch = replay.sample(KEY, state, BATCH, 1.0)
    np.testing.assert_array_equal(batch.index, np.full(BATCH, 4))
    np.testing.assert_array_equal(batch.importance_weight, np.ones(BATCH))


def test_sample_demonstrations_is_uniform_over_their_transitions():
    replay, state = small()
    state = add_rows(replay, state, 12)
    state = replay.set_priorities(state, np.arange(3), np.asarray([1e4, 1e-4, 0.0]))
    batches = [
        replay.sample_demonstrations(jax.random.fold_in(KEY, i), state, BATCH) for i in range(10)
    ]
    counts = np.sum([np.bincount(batch.index, minlength=22) for batch in batches], axis=0)
    expected = 10 * BATCH / 5
    assert not counts[5:].any()
    assert ((counts[:5] - expected) ** 2 / expected).sum() < 4 + 5 * np.sqrt(8)
    batch = batches[0]
    assert batch.is_expert.all()
    assert (batch.importance_weight == 1).all()
    assert batch.index.dtype == jnp.int32
    np.testing.assert_array_equal(batch.observation[:, -1, 1], batch.index)
    assert not np.array_equal(batch.index, batches[1].index)


def test_without_demonstrations():
    replay = make_replay(**SIZES | dict(num_demo_rows=0, num_lanes=1))
    state = replay.init()
    assert state.visit_count.shape == (0,)
    assert replay.count_visits(state, jnp.asarray([0, 3])).visit_count.shape == (0,)
    with pytest.raises(ValueError, match="no demonstrations"):
        replay.sample_demonstrations(KEY, state, 4)


def test_shapes_and_dtypes_of_a_batch():
    replay = make_replay(**SIZES | dict(frame_shape=(5, 4), n_step=3, path_steps=3))
    demonstrations = DEMONSTRATIONS.replace(frame=np.zeros((6, 5, 4), np.int32))
    state = jax.eval_shape(replay.init, demonstrations)
    batch = jax.eval_shape(lambda state: replay.sample(KEY, state, 7), state)
    stack = ((7, 2, 5, 4), np.int32)
    real, whole = np.float32, np.int32
    expected = {
        "observation": stack,
        "next_observation": stack,
        "n_step_observation": stack,
        "path_observation": ((7, 2, 2, 5, 4), whole),
        "path_action": ((7, 3), whole),
        "path_discount": ((7, 3), real),
        "path_visit_count": ((7, 3), real),
        "is_expert": ((7,), bool),
    }
    expected |= {name: ((7,), whole) for name in ("action", "index")}
    expected |= {name: ((7,), real) for name in ("reward", "discount", "importance_weight")}
    expected |= {name: ((7,), real) for name in ("n_step_return", "n_step_discount")}
    assert {name: (x.shape, x.dtype) for name, x in batch.items()} == expected


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (np.uint8, [0, 255, 128, 1]),
        (np.float32, [1e-30, -1.5, np.inf, 0.1]),
    ],
)
def test_frames_of_other_dtypes(dtype, values):
    frames = np.asarray(values, dtype)[:, None] * np.ones(2, dtype)
    demo = DEMONSTRATIONS.replace(frame=np.concatenate([frames, frames[:2]]))
    replay = compiled(
        frame_shape=(2,), frame_dtype=dtype, num_demo_rows=6, rows_per_lane=5, stack=1
    )
    state = replay.init(demo, 0.0)
    for t in range(5):
        row = as_rows([Step(frame=(), is_first=t == 0)]).replace(frame=frames[t % 4][None])
        state = replay.add(state, row)
    batch = replay.sample(KEY, state, 16)
    assert batch.observation.dtype == dtype
    assert set(np.asarray(batch.index)) == {6, 7, 8, 9}
    np.testing.assert_array_equal(batch.observation[:, 0], frames[batch.index - 6])
    np.testing.assert_array_equal(state.rows.frame[:4], frames)


@pytest.mark.parametrize("jitted_init", [True, False])
def test_donated_rows_stay_where_they_are(jitted_init):
    replay = compiled(**SIZES)
    state = (replay if jitted_init else replay.plain).init(DEMONSTRATIONS)
    row = as_rows([Step(frame=(lane, 0, 0), is_first=True) for lane in range(2)])
    add = donating_add()
    pointer = state.rows.frame.unsafe_buffer_pointer()
    assert replay.add(state, row).rows.frame.unsafe_buffer_pointer() != pointer
    before = state
    state = add(add(state, row), row)
    assert state.rows.frame.unsafe_buffer_pointer() == pointer
    assert before.rows.frame.is_deleted()


@functools.cache
def donating_add():
    return jax.jit(compiled(**SIZES).plain.add, donate_argnums=0)


@pytest.mark.parametrize("name", ["add", "set_priorities", "count_visits"])
def test_changes_make_no_copy_of_the_rows(name):
    sizes = dict(frame_shape=(84, 84), frame_dtype=np.uint8, rows_per_lane=5000)
    replay = make_replay(**SIZES | sizes)
    frames = DEMONSTRATIONS.replace(frame=np.zeros((6, 84, 84), np.uint8))
    state = jax.eval_shape(replay.init, frames)
    arguments = {
        "add": [jax.tree.map(lambda x: x[:2], frames)],
        "set_priorities": [np.zeros(32, np.int32), np.zeros(32, np.float32)],
        "count_visits": [np.zeros(32, np.int32)],
    }[name]
    change = jax.jit(getattr(replay, name), donate_argnums=0).lower(state, *arguments).compile()
    memory = change.memory_analysis()
    assert memory.alias_size_in_bytes > 0.99 * replay.num_bytes
    assert memory.temp_size_in_bytes < 0.01 * replay.num_bytes


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        dict(num_demo_rows=0, num_lanes=1, rows_per_lane=1000),
        dict(num_demo_rows=500, frame_shape=(84, 84), frame_dtype=np.uint8, rows_per_lane=262),
        dict(frame_shape=(), frame_dtype=np.float32, rows_per_lane=30),
    ],
)
def test_num_bytes_is_what_the_state_takes(sizes):
    replay = make_replay(**SIZES | sizes)
    E = replay.layout.num_demo_rows
    frame_shape = (SIZES | sizes)["frame_shape"]
    demo = jax.tree.map(lambda x: np.zeros((E, *x.shape[1:])), DEMONSTRATIONS)
    demo = demo.replace(frame=np.zeros((E, *frame_shape), (SIZES | sizes)["frame_dtype"]))
    state = jax.eval_shape(replay.init, demo if E else None)
    real = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    assert abs(replay.num_bytes - real) <= 16


def test_vmap_agrees_with_separate_replays():
    replay, _ = small()
    priorities = jnp.asarray([1.0, 4.0, 16.0])
    states = [replay.init(DEMONSTRATIONS, p) for p in priorities]
    together = jax.jit(jax.vmap(lambda p: replay.plain.init(DEMONSTRATIONS, p)))(priorities)
    keys = jax.random.split(KEY, 3)
    rng = np.random.default_rng(0)
    lanes = [[random_steps(rng, lane) for lane in range(2)] for _ in range(3)]
    add = jax.jit(jax.vmap(replay.plain.add))
    for _ in range(12):
        rows = [as_rows([next(lane) for lane in each]) for each in lanes]
        states = [replay.add(state, row) for state, row in zip(states, rows, strict=True)]
        together = add(together, jax.tree.map(lambda *x: np.stack(x), *rows))
    batches = [replay.sample(key, state, BATCH) for state, key in zip(states, keys, strict=True)]
    batch = jax.jit(jax.vmap(lambda state, key: replay.plain.sample(key, state, BATCH)))(
        together, keys
    )
    for many, each in ((together, states), (batch, batches)):
        jax.tree.map(
            lambda x, *xs: np.testing.assert_allclose(x, np.stack(xs), rtol=1e-6), many, *each
        )


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (dict(num_lanes=0), "num_lanes is 0"),
        (dict(num_demo_rows=-1), "num_demo_rows is -1"),
        (dict(stack=0), "stack is 0"),
        (dict(n_step=0), "n_step is 0"),
        (dict(path_steps=0), "path_steps is 0"),
        (dict(rows_per_lane=4), "rows_per_lane is 4, but must be at least 5"),
        (dict(rows_per_lane=8, stack=4, n_step=4), "rows_per_lane is 8, but must be at least 9"),
        (dict(path_steps=3), r"path_steps is 3, but must be at most n_step \(2\)"),
        (dict(priority_exponent=-0.1), "priority_exponent is -0.1"),
        (dict(priority_exponent=1.1), "priority_exponent is 1.1"),
        (dict(priority_exponent=float("nan")), "priority_exponent is nan"),
        (dict(num_lanes=2, rows_per_lane=2**30), "2147483654 rows do not fit into int32"),
    ],
)
def test_bad_sizes_are_named(sizes, message):
    with pytest.raises(ValueError, match=message):
        make_replay(**SIZES | sizes)


def test_the_least_and_the_most_rows_are_allowed():
    make_replay(**SIZES | dict(rows_per_lane=5))
    make_replay(**SIZES | dict(num_demo_rows=1, num_lanes=1, rows_per_lane=2**31 - 2))


@pytest.mark.parametrize(
    ("num_demo_rows", "given", "message"),
    [(6, 0, "for 6 .* 0 came"), (6, 5, "for 6 .* 5 came"), (0, 6, "for 0 .* 6 came")],
)
def test_init_wants_all_demonstrations(num_demo_rows, given, message):
    replay = make_replay(**SIZES | dict(num_demo_rows=num_demo_rows))
    demo = jax.tree.map(lambda x: x[:given], DEMONSTRATIONS) if given else None
    with pytest.raises(ValueError, match=message):
        replay.init(demo)


def test_add_wants_one_row_per_lane():
    replay, state = small()
    with pytest.raises(AssertionError):
        replay.add(state, as_rows([Step(frame=(0, 0, 0), is_first=True)] * 3))


FIRST = Step(frame=(), is_first=True)
MIDDLE = Step(frame=())
TERMINAL = Step(frame=(), discount=0.0)
LAST = Step(frame=(), is_last=True)
ONLY = Step(frame=(), is_first=True, discount=0.0)


@pytest.mark.parametrize(
    "steps",
    [
        [FIRST, MIDDLE, TERMINAL],
        [FIRST, TERMINAL, LAST],
        [FIRST, LAST, FIRST, TERMINAL, ONLY, ONLY, FIRST, MIDDLE, TERMINAL, LAST],
    ],
)
def test_whole_episodes_are_demonstrations(steps):
    check_demonstrations(as_rows(steps))


def test_a_lost_life_is_no_end_where_there_are_lives():
    lost_life = [FIRST, TERMINAL, MIDDLE, TERMINAL, LAST, FIRST, TERMINAL]
    check_demonstrations(as_rows(lost_life), lives=True)
    with pytest.raises(ValueError, match=r"row 1 terminates .* goes on"):
        check_demonstrations(as_rows(lost_life))
    with pytest.raises(ValueError, match=r"row 2 .* neither terminates"):
        check_demonstrations(as_rows([FIRST, TERMINAL, MIDDLE]), lives=True)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([], "no transition"),
        ([LAST], "no transition"),
        ([FIRST, TERMINAL, MIDDLE, TERMINAL], "row 1 terminates .* goes on"),
        ([MIDDLE, TERMINAL], "row 0 .* must begin"),
        ([FIRST, TERMINAL, FIRST, MIDDLE], "row 3 .* neither terminates"),
        ([FIRST, MIDDLE, FIRST, TERMINAL], "row 1 .* neither terminates"),
        ([FIRST], "row 0 .* neither terminates"),
        ([FIRST, TERMINAL, FIRST, LAST, MIDDLE, TERMINAL], "row 3 .* goes on"),
    ],
)
def test_broken_demonstrations_are_named(steps, message):
    with pytest.raises(ValueError, match=message):
        check_demonstrations(as_rows(steps))


@pytest.mark.parametrize(
    "frame", [np.zeros((6, 4), np.int32), np.zeros((6, 3), np.float32), np.zeros((6, 1), np.int32)]
)
def test_demonstration_frames_must_be_the_replays_own(frame):
    with pytest.raises(ValueError, match=r"frames are .* made for int32\[3\]"):
        make_replay(**SIZES).init(DEMONSTRATIONS.replace(frame=frame))


def test_while_nothing_can_be_drawn_importance_weights_are_zero():
    replay = make_replay(**SIZES | {"num_demo_rows": 0})
    batch = replay.sample(KEY, replay.init(), 4)
    np.testing.assert_array_equal(batch.importance_weight, np.zeros(4))


def test_the_first_row_of_a_lane_begins_an_episode_whatever_it_says():
    replay, state = small()
    state = add_rows(replay, state, 3, first=())
    first = SIZES["num_demo_rows"] + np.array([0, SIZES["rows_per_lane"]])
    assert state.rows.is_first[first].all()
    assert not state.rows.is_first[first + 1].any()


def test_a_priority_that_is_not_a_number_hurts_its_row_only():
    replay, state = small()
    state = replay.set_priorities(state, jnp.array([0, 1]), jnp.array([np.nan, 3.0]))
    assert state.max_priority == 3.0
    np.testing.assert_allclose(sum_tree.get(state.tree, jnp.array([0, 1])), [0.0, 3.0**0.5])


def test_new_rows_start_at_the_demonstrations_priority_if_that_is_larger():
    _, state = small(demo_priority=9.0)
    assert state.max_priority == 9.0


def test_a_replay_tells_what_it_was_made_for():
    replay = make_replay(**SIZES | dict(frame_shape=[5, 4], frame_dtype=jnp.uint8, stack=3))
    assert (replay.frame_shape, replay.frame_dtype, replay.stack) == ((5, 4), jnp.uint8, 3)
    assert (replay.n_step, replay.path_steps, replay.priority_exponent) == (2, 1, 0.5)
    assert replay.layout == (6, 2, 8, 0)


def test_discounts_must_be_the_agents():
    steps = [Step(frame=(0, 0, 0), is_first=True, discount=0.9), Step(frame=(0, 1, 0), discount=0)]
    check_discounts(as_rows(steps), 0.9)
    with pytest.raises(ValueError, match=r"a discount of 0\.9, but the agent's gamma is 0\.99"):
        check_discounts(as_rows(steps), 0.99)
    # A row that starts no transition may say anything.
    cut = [steps[0], Step(frame=(0, 1, 0), discount=0.3, is_last=True)]
    check_discounts(as_rows(cut), 0.9)
    with pytest.raises(ValueError, match="a discount of nan"):
        check_discounts(as_rows([Step(frame=(0, 0, 0), discount=np.nan)]), 0.9)
