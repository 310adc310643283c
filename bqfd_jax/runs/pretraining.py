"""What a run does before its first step."""

from typing import TYPE_CHECKING

from bqfd_jax.runs.errors import Stopped

if TYPE_CHECKING:
    from bqfd_jax.runs.host_run import HostRun

# How often the bar moves and the sink is asked whether to stop: in updates here, later in steps of
# all environments.
CHUNK = 8


class Pretraining:
    """Updates from demonstrations alone, before the first step; all there is of a clone's run."""

    unit = "update"

    def __init__(self, run: "HostRun"):
        config = run.config
        self.title = f"{config.title} clone" if config.only_copies else "pre-training"
        self._run, self.total = run, config.pretrain_updates
        self._save_period = max(1, int(config.checkpoint_period / config.update_period))

    @property
    def position(self) -> int:
        """Updates made; all of them once more would be of no use."""
        run = self._run
        finished = run.job.agent.finished
        done = finished is not None and finished(run.loop.state.learner)
        return self.total if done else run.updates

    def advance(self) -> str | None:
        """Some updates, and in the end a row, an evaluation and a checkpoint."""
        run, before = self._run, self.position
        # What is due at the end of pre-training comes with its last update, or not at all.
        for _ in range(max(1, min(CHUNK, self.total - 1 - before))):
            run.loop.state = run.job.trainer.pretrain(run.loop.state)
        if self.position == self.total:
            run.log(0.0, [])
            if run.config.eval_period:
                run.evaluate()
            run.save()
            return None
        if self.position // self._save_period > before // self._save_period:
            run.save()
        return self._note(before) if run.config.only_copies else None

    def _note(self, before: int) -> str | None:
        """Of a clone, all of whose learning is here: a row now and then."""
        period = self._run.config.log_period
        if self.position // period == before // period:
            return None
        row = self._run.log(0.0, [])
        return f"loss {row['loss']:.3g}, on held-out rows {row['held_out_loss']:.3g}"

    def put_down(self) -> Stopped:
        """Saves; gives the exception that says how to go on."""
        return self._run.stopped("during pre-training")
