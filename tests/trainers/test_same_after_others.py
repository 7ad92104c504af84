"""A trial is the same in a process that has trained others as in a new one: its weights bit for bit, and its memory.

Its seconds are compared by `benchmarks/fresh_or_warm.py`, since a test must not depend on the machine's load.
"""

from pathlib import Path

import pytest

from tests.support.engine_combinations import COMBINATIONS, combined, others
from tests.support.trial_rows import train_row

MOST_BYTES = 64 * 2**20
"""Most that the peaks of equal trials may differ by: libraries keep some 35 MiB that they make at first use, the
compiler 20 MiB more. Ten models of 7 MB with gradients and moments would be 280 MB. Thirty more trials added nothing
(307, 339, 332, 334, 334 MiB).
"""


@pytest.mark.large
@pytest.mark.parametrize(
    ("names", "before"),
    [
        pytest.param([*COMBINATIONS][:1], slice(2, 5), id="one"),
        pytest.param([*COMBINATIONS][:10], slice(10), id="ten", marks=pytest.mark.slow),
        pytest.param([*COMBINATIONS][10:], slice(10), id="compiled", marks=pytest.mark.slow),
    ],
)
@pytest.mark.xdist_group("ranks")
def test_a_trial_is_the_same_in_a_new_process_as_after_others(tmp_path: Path, names: list[str], before: slice) -> None:
    specs = [combined(name, number, folder=str(tmp_path)) for number, name in enumerate(names)]
    used = train_row([*others()[before], *specs])
    fresh = [train_row([spec])[0] for spec in specs]
    for name, one, other in zip(names, used, fresh, strict=True):
        differing = [key for key in other.weights if one.weights[key] != other.weights[key]]
        assert not differing, f"{name}: {differing}"
        peaks = one.peak_memory_bytes, other.peak_memory_bytes
        assert abs(peaks[0] - peaks[1]) < MOST_BYTES, f"{name}: {[round(peak / 2**20, 1) for peak in peaks]} MiB"
