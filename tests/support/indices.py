"""Indices of candidates under what a model has learned, as the tests of the search ask for them."""

from studies.search.acquisition.acquisition import Acquisition, build_acquisition
from studies.search.arrays import Array
from studies.search.model.candidate_batch import CandidateBatch
from studies.search.model.curve_model import CurveModel


def acquisition_of(model: CurveModel) -> Acquisition:
    """The acquisition function, given the trials that the model has learned from."""
    return build_acquisition(model, model.table.trials, refit=False)


def indices(model: CurveModel, batch: CandidateBatch, *, exact: bool = True) -> Array:
    """Value per dollar of each candidate."""
    return acquisition_of(model).index(model.forecast(batch), exact=exact)
