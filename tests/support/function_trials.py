"""Training functions as trials, outside a pool: granted so many epochs, and stopped after one."""

from dataclasses import replace

from trainers.contract.task_loading import load_trainable
from trainers.functions.function_trainer import FunctionTrainer
from trainers.protocol import TrainingError
from trainers.ranks.process_group import Group


class Granted:
    """Grants epochs up to one, and lets the trial drain with another."""

    def __init__(self, until=1000, ends_with=None):
        self.measurements, self.facts, self._until, self._ends_with = [], None, until, ends_with

    def begin(self, facts):
        self.facts = facts

    def until(self, epoch):
        return self._until if epoch < self._until else None

    def seconds_left(self):
        return 0.0 if len(self.measurements) + 1 == self._ends_with else None

    def measured(self, pending):
        self.measurements.append(pending.told())


def trained(group, spec, until=1000, ends_with=None):
    function = load_trainable(spec.task, spec.task_options, spec.python_path)
    trainer, course = FunctionTrainer(spec, function, group=group), Granted(until, ends_with)
    try:
        trainer.run(course)
    finally:
        remains = trainer.close()
    weights = {}
    if trainer._trial.modules:
        state = trainer._trial.modules[0].state_dict()
        weights = {n: getattr(value, "full_tensor", lambda value=value: value)().clone() for n, value in state.items()}
    assert (remains is None) == (not trainer._trial.modules)
    return {"measurements": course.measurements, "weights": weights, "facts": course.facts}


def on(ranks, spec, **more):
    if spec.world_size == 1:
        return [trained(Group(), spec, **more)]
    done = ranks.run(spec.world_size, trained, spec, *more.values())
    for one in done:
        if isinstance(one, TrainingError):
            raise one
    return done


def in_attempts(lent, spec, **more):
    """Train a trial that is stopped after each epoch; returns each attempt as rank 0 saw it."""
    attempts, path = [], None
    while not attempts or attempts[-1]["measurements"][-1].epoch < spec.training["epochs"]:
        attempt = replace(spec, attempt=len(attempts) + 1, resume_from=path)
        attempts.append(on(lent, attempt, until=1000, ends_with=1)[0])
        path = attempts[-1]["measurements"][-1].checkpoint
    return attempts
