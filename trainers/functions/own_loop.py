"""Learning rate, facts and limits of trials with the user's own training loop."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from search_spaces.parameters import same
from search_spaces.suggestions import Asked
from trainers.checkpoints.checkpoint_writer import Pending
from trainers.model.learning_rate import resolve_rule, scale
from trainers.protocol import EpochPart, Measurement, TaskError, TrialFacts, TrialSpec
from trainers.trial_settings import settings_of


class Course(Protocol):
    """Limits a trial's training, and receives the trial's reports."""

    def begin(self, facts: TrialFacts, ago_seconds: float = 0.0) -> None:
        """Report the trial's facts; its first epoch began `ago_seconds` ago."""

    def until(self, epoch: int) -> int | None:
        """Wait until more than `epoch` epochs are allowed, and return their number; None ends the trial."""

    def seconds_left(self) -> float | None:
        """Return the seconds left to end the trial; None while it may continue."""

    def asked(self, name: str, asked: Asked) -> None:
        """Report a parameter requested at run time."""

    def saved(self, pending: Pending[EpochPart]) -> None:
        """Report a checkpoint within an epoch, once it is written."""

    def measured(self, pending: Pending[Measurement]) -> None:
        """Report an epoch's measurement, once its checkpoint is written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionFacts(TrialFacts):
    """Facts of a training function's attempt. `models`: names of saved torch modules, which can be exported."""

    models: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumingFacts(FunctionFacts):
    """Facts of an attempt that cannot resume with the same bits. `resuming` names the restarted state, and why."""

    resuming: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RestartedFacts(TrialFacts):
    """Facts of a command's attempt that starts over. `resuming` gives the reason."""

    resuming: str


class OwnLoop:
    """Learning rate and settings of a trial with the user's own training loop, called `form` in messages.

    `has_rate` is false if the parameter `learning_rate` is not a rate, such as a text. Raises TaskError for wrong
    options, and for options that need the trainer's loop.
    """

    def __init__(self, spec: TrialSpec, form: str) -> None:
        self.spec = spec
        self.settings = settings = settings_of(spec, has_own_loop=True)
        named = {**spec.training, **spec.params}.get("optimizer")
        self._is_known = named is not None or settings.lr_scaling != "auto"
        self._rule = resolve_rule(settings.lr_scaling, str(named or settings.optimizer))
        if self._rule == "adascale":
            raise TaskError(f"training.lr_scaling is 'adascale', which {form} cannot use. Choose linear, sqrt or none")
        self._ratio = settings.effective_batch / settings.reference_batch
        self.learning_rate = scale(settings.learning_rate, self._ratio, self._rule)
        self.has_rate = same(spec.params.get("learning_rate", settings.learning_rate), settings.learning_rate)

    def follow(self, optimizers: Iterable[Any]) -> None:
        """Scale learning rates by the optimizer's own rule, if the study names neither optimizer nor rule.

        Applies to all groups if any group of the first optimizer uses `learning_rate`. Raises TaskError if a schedule
        already started from one of the rates.
        """
        given = list(optimizers)
        scheduled = ("lr", "initial_lr", "max_lr")  # schedules with a warm-up change `lr` at once
        rates = {group.get(name) for one in given[:1] for group in one.param_groups for name in scheduled}
        if self._is_known or self.learning_rate not in rates:
            return
        name = type(given[0]).__name__
        rule = resolve_rule("auto", name)
        rate = scale(self.settings.learning_rate, self._ratio, rule)
        if rate == self.learning_rate:
            return
        groups = [group for optimizer in given for group in optimizer.param_groups]
        if any("initial_lr" in group for group in groups):
            raise TaskError(
                f"trial.epochs: trial.learning_rate was scaled for SGD, but the optimizer is {name}, which needs "
                "another scaling, and a schedule already uses the wrong value. To tell the optimizer in time, put "
                f"`optimizer: {name.lower()}` into the space"
            )
        for group in groups:
            group["lr"] *= rate / self.learning_rate
        self._rule, self.learning_rate = rule, rate

    def facts(
        self,
        epoch: int,
        code_files: Mapping[str, str],
        model_parameters: int = 0,
        models: tuple[str, ...] | None = None,
        resuming: str = "",
        *,
        is_scaled: bool = True,
        has_test_part: bool = False,
    ) -> TrialFacts:
        """Return the facts known before the first epoch. `model_parameters` is 0 if unknown; commands have no `models`.

        `resuming` names state that an attempt restarts. `is_scaled` is false for a command that uses the unscaled
        learning rate. Both rates are 0 if the parameter `learning_rate` is not a rate.
        """
        base = self.settings.learning_rate if self.has_rate else 0.0
        is_scaled = is_scaled and self.has_rate
        facts = TrialFacts(
            base_learning_rate=base,
            scaled_learning_rate=self.learning_rate if is_scaled else base,
            lr_scaling=self._rule if is_scaled else "none",
            reference_batch=self.settings.reference_batch,
            effective_batch=self.settings.effective_batch,
            samples=0,
            samples_per_rank=0,
            model_parameters=model_parameters,
            start_epoch=epoch,
            code_files=code_files,
            has_test_part=has_test_part,
        )
        if models is None:
            return RestartedFacts(**asdict(facts), resuming=resuming) if resuming else facts
        told = FunctionFacts(**asdict(facts), models=models)
        return ResumingFacts(**asdict(told), resuming=resuming) if resuming else told
