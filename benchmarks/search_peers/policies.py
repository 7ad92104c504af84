"""Whom search.py compares: a sampler and a pruner each, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from search_peers.advice import honest, lying
from search_peers.ask_tell import Rival
from search_peers.botorch_momf import momf
from search_peers.hyperband import Hyperband
from search_peers.i_epoch import IEpoch
from search_peers.multi_metric import MultiMetric
from search_peers.scalarised_asha import ScalarisedAsha
from search_peers.syne_moasha import SyneMoasha
from search_peers.unpruned_gp import UnprunedGp
from studies.search.observations import Observation
from studies.search.samplers.optuna_suggester import OptunaSuggester
from studies.search.samplers.suggester import Suggester, Suggestion
from studies.simulation.setting import AdviceChoice, NearestCandidate, PrunerChoice, SamplerChoice, Setting
from studies.spec.sections import PRUNERS, SAMPLERS

PROMOTION: Mapping[str, object] = {"name": "mo_asha", "variant": "promotion"}


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A sampler and a pruner, as `simulate` takes them.

    Attributes:
        is_baseline: Whether ours is compared with it in the figures.
        planar: Whether it can do two objectives only, the first one learned.
        scalar: Whether it can do one objective only.
        earlier: How many other tasks it has studied before, one study each, and learns from.
        again: Whether it has studied the same task before, from another seed, and learns from that.
        history: The kind of a history of the same task that it has imported; see `search_peers.histories`.
        advice: Makes the source of an advisor's proposals.
    """

    sampler: SamplerChoice
    pruner: PrunerChoice
    is_baseline: bool = False
    planar: bool = False
    scalar: bool = False
    earlier: int = 0
    again: bool = False
    history: str = ""
    advice: AdviceChoice | None = None


class ToldOfFinished:
    """A suggester that is told of complete, diverged and running trials only."""

    def __init__(self, suggester: Suggester, setting: Setting) -> None:
        self._suggester, self._setting = suggester, setting

    def suggest(self, number: int, history: tuple[Observation, ...]) -> Suggestion:
        """The parameters for trial `number`."""
        heard = {
            trial.id
            for trial in self._setting.record().started
            if trial.state in {"complete", "running"} or trial.failure == "diverged"
        }
        return self._suggester.suggest(number, tuple(one for one in history if one.trial_id in heard))


def tpe_told_last_values(setting: Setting) -> Suggester:
    """TPE that takes the last values of a trial that was cut short for those of its end."""
    anywhere = OptunaSuggester(
        space=setting.table.space,
        directions=tuple(objective.direction for objective in setting.objectives),
        sampler="tpe",
        seed=setting.seed,
        study_attributes={},
    )
    return NearestCandidate(anywhere, setting.candidates)


def tpe_told_of_finished(setting: Setting) -> Suggester:
    """TPE that learns nothing from pruned trials."""
    return ToldOfFinished(tpe_told_last_values(setting), setting)


def _rival(name: str, variant: str = "", *, planar: bool = False, scalar: bool = False) -> Contestant:
    both = Rival(name, variant)
    return Contestant(sampler=both, pruner=both, planar=planar, scalar=scalar)


def _gp(*, prices_known: bool) -> Callable[[Setting], Suggester]:
    return lambda setting: UnprunedGp(setting, prices_known=prices_known)


CONTESTANTS: dict[str, Contestant] = {
    "ours": Contestant(sampler="auto", pruner="auto"),
    "mo_asha_stop_random": Contestant(sampler="random", pruner="mo_asha", is_baseline=True),
    "mo_asha_promotion_random": Contestant(sampler="random", pruner=PROMOTION, is_baseline=True),
    "tpe": Contestant(sampler="tpe", pruner="none", is_baseline=True),
    "tpe_hyperband": Contestant(sampler=tpe_told_last_values, pruner=Hyperband, is_baseline=True),
    "tpe_multi_metric": Contestant(sampler=tpe_told_last_values, pruner=MultiMetric, is_baseline=True),
    "nsga2": Contestant(sampler="nsga2", pruner="none", is_baseline=True),
    "optuna_gp": Contestant(sampler="gp", pruner="none", is_baseline=True),
    "random": Contestant(sampler="random", pruner="none", is_baseline=True),
    "gp_unpruned": Contestant(sampler=_gp(prices_known=False), pruner="none", is_baseline=True, planar=True),
    "gp_unpruned_prices_known": Contestant(
        sampler=_gp(prices_known=True), pruner="none", is_baseline=True, planar=True
    ),
    "i_epoch_1": Contestant(sampler="random", pruner=lambda setting: IEpoch(setting, 1), is_baseline=True),
    "i_epoch_4": Contestant(sampler="random", pruner=lambda setting: IEpoch(setting, 4), is_baseline=True),
    "asha_scalarised": Contestant(
        sampler="random", pruner=lambda setting: ScalarisedAsha(setting.seed), is_baseline=True
    ),
    "syne_moasha": Contestant(sampler="random", pruner=SyneMoasha, is_baseline=True),
    "botorch_momf": Contestant(sampler=momf, pruner=momf, is_baseline=True, planar=True),
    "smac_mf": _rival("smac", "mf", scalar=True),
    "smac_parego": _rival("smac", planar=True),
    "neps_primo": _rival("neps", "primo", planar=True),
    "neps_mo_hyperband": _rival("neps", planar=True),
    "dehb": _rival("dehb", scalar=True),
    "ax": _rival("ax"),
    "ours_after_two": Contestant(sampler="auto", pruner="auto", earlier=2),
    "ours_again": Contestant(sampler="auto", pruner="auto", again=True),
    **{
        f"ours_{kind}": Contestant(sampler="auto", pruner="auto", history=kind)
        for kind in ("wandb", "mlflow", "ray", "optuna", "shuffled", "inverted")
    },
    "ours_lying_advisor": Contestant(sampler="auto", pruner="auto", advice=lying),
    "ours_honest_advisor": Contestant(sampler="auto", pruner="auto", advice=honest),
    # The rest of the grid: ours with other parts, and parts of ours.
    "median_random": Contestant(sampler="random", pruner="median"),
    "mo_asha_stop_tpe_finished": Contestant(sampler=tpe_told_of_finished, pruner="mo_asha"),
    "mo_asha_promotion_tpe_finished": Contestant(sampler=tpe_told_of_finished, pruner=PROMOTION),
    "mo_asha_stop_tpe": Contestant(sampler=tpe_told_last_values, pruner="mo_asha"),
    "mo_asha_promotion_tpe": Contestant(sampler=tpe_told_last_values, pruner=PROMOTION),
    "cokriging": Contestant(sampler="cokriging", pruner="none"),
    "mo_asha_stop_cokriging": Contestant(sampler="cokriging", pruner="mo_asha"),
    "mo_asha_promotion_cokriging": Contestant(sampler="cokriging", pruner=PROMOTION),
    "break_even_random": Contestant(sampler="random", pruner="break_even"),
    "break_even_tpe": Contestant(sampler=tpe_told_last_values, pruner="break_even"),
    "break_even_tpe_finished": Contestant(sampler=tpe_told_of_finished, pruner="break_even"),
    "break_even_cokriging": Contestant(sampler="cokriging", pruner="break_even"),
}


def available(name: str) -> bool:
    """Whether this version has the sampler and the pruner."""
    contestant = CONTESTANTS[name]
    pruner = contestant.pruner.get("name") if isinstance(contestant.pruner, Mapping) else contestant.pruner
    has_sampler = not isinstance(contestant.sampler, str) or contestant.sampler in SAMPLERS
    return has_sampler and (not isinstance(pruner, str) or pruner in PRUNERS)
