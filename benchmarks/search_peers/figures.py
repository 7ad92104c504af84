"""From simulated studies to figures: how many times cheaper, regret, calibration, latency.

"x cheaper" is what the baseline paid until it had the hypervolume that it has at 25, 50 or 100 % of its budget, over
what ours paid until it had as much; never reached counts as 1.5 budgets. Studies in which the baseline has nothing by
then are left out of that figure. It is a geometric mean over tasks and seeds, with a 95 % interval by bootstrap: tasks
are drawn first, then seeds of each.

Pairs of single studies punish whoever is called ours: the baseline's luck is the target, and nothing pays for our own.
"By mean curves" is the same ratio between the mean curves over the seeds of each task, as a geometric mean over tasks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

Line = dict[str, Any]
Curve = list[list[float]]

AT = (25, 50, 100)
NEVER = 1.5
RESAMPLES = 2000
REGRET_AT = (5, 10, 25, 50, 75, 100)
KINDS = (("suggestion", "suggest_ms"), ("decision", "decide_ms"), ("free slot", "free_slot_ms"))
USUAL_BUDGETS = (20.0, 40.0)
TRIAL_BUCKETS = (0, 50, 100, 200, 400, 800, 1600)


def figures(lines: list[Line], ours: str) -> dict[str, Any]:
    """The document that `--json` prints, with one of the policies as ours."""
    return {
        "comparisons": comparisons(lines, ours),
        "regret": regret(lines),
        "calibration": calibration(lines),
        "latency": latency(lines),
        "seconds": seconds(lines),
    }


def problem(line: Line) -> str:
    """The problem's name; 4 slots, uniform prices and the usual budget are not mentioned."""
    slots = "" if line["slots"] == 4 else f", {line['slots']} slots"
    budget = "" if line["full_trials"] in USUAL_BUDGETS else f", {line['full_trials']:g} full trainings"
    return f"{line['second']}{slots}{budget}{', prices vary' if line['prices'] == 'vary' else ''}"


def family(line: Line) -> str:
    """Whether a study was over the pooled tables or over a single one."""
    return "taskset" if line["task"] == "taskset" else "lcbench"


# ---------------------------------------------------------------------- x cheaper


def comparisons(lines: list[Line], our_policy: str) -> list[dict[str, Any]]:
    """Ours against each other policy, for each problem, split and part of the budget."""
    by_policy: dict[tuple[str, str], dict[tuple[str, int], Line]] = {}
    for line in lines:
        by_policy.setdefault((problem(line), line["policy"]), {})[line["task"], line["seed"]] = line
    found = []
    for (name, policy), theirs in by_policy.items():
        ours = by_policy.get((name, our_policy), {})
        both = sorted(theirs.keys() & ours.keys())
        if policy == our_policy or not both:
            continue
        for scored_on in ("validation", "test"):
            for at in AT:
                logs: dict[str, list[float]] = {}
                for key in both:
                    ratio = times_cheaper(ours[key], theirs[key], scored_on, at / 100)
                    if ratio is not None:
                        logs.setdefault(key[0], []).append(math.log(ratio))
                if not logs:
                    continue
                by_means = []
                for task in logs:
                    mean_of = [mean_line([of[key] for key in both if key[0] == task]) for of in (ours, theirs)]
                    by_means.append(times_cheaper(mean_of[0], mean_of[1], scored_on, at / 100))
                found.append(
                    {"problem": name, "scored_on": scored_on, "baseline": policy, "at": at, **_summary(logs)}
                    | {"x_cheaper_by_mean_curves": math.exp(_mean(math.log(one) for one in by_means if one))}
                    | {name: theirs[both[0]][name] for name in ("slots", "full_trials", "prices")}
                )
    return found


def times_cheaper(ours: Line, theirs: Line, scored_on: str, part: float) -> float | None:
    """The dollars that they need over ours, to reach what they have after a part of their budget; None if nothing."""
    budget = theirs["budget_usd"]
    target = share_at(theirs[scored_on], part * budget)
    if target <= 0:
        return None
    theirs_usd, ours_usd = usd_to_reach(theirs[scored_on], target), usd_to_reach(ours[scored_on], target)
    assert theirs_usd is not None
    return theirs_usd / (NEVER * budget if ours_usd is None else ours_usd)


def mean_line(lines: Sequence[Line]) -> Line:
    """The mean curve of studies of one task, over dollars as parts of their budgets."""
    mean: Line = {"budget_usd": 1.0}
    for scored_on in ("validation", "test"):
        parts = sorted({usd / line["budget_usd"] for line in lines for usd, _ in line[scored_on]})
        mean[scored_on] = [
            [part, _mean(share_at(line[scored_on], part * line["budget_usd"] * (1 + 1e-12)) for line in lines)]
            for part in parts
        ]
    return mean


def share_at(curve: Curve, usd: float) -> float:
    """The share of the table's hypervolume that was reached by then."""
    return max((share for spent, share in curve if spent <= usd), default=0.0)


def usd_to_reach(curve: Curve, share: float) -> float | None:
    """The dollars after which a share was reached, None if never."""
    return next((spent for spent, reached in curve if reached >= share), None)


def _summary(logs: dict[str, list[float]]) -> dict[str, Any]:
    """Geometric mean, its interval, and the task where it is worst."""
    means = {task: math.fsum(values) / len(values) for task, values in logs.items()}
    worst = min(means, key=lambda task: means[task])
    low, high = _interval(list(logs.values()))
    return {
        "geo_mean_x_cheaper": math.exp(math.fsum(means.values()) / len(means)),
        "low": low,
        "high": high,
        "worst_task": worst,
        "worst_x": math.exp(means[worst]),
        "tasks": len(logs),
        "seeds": max(map(len, logs.values())),
    }


def _interval(logs: Sequence[Sequence[float]]) -> tuple[float, float]:
    """95 % of the geometric means of resampled tasks and seeds; tasks may have different numbers of seeds."""
    rng = np.random.default_rng(0)
    counts = np.array([len(values) for values in logs])
    padded = np.array([[*values, *[0.0] * (counts.max() - len(values))] for values in logs])
    tasks = rng.integers(len(logs), size=(RESAMPLES, len(logs)))
    drawn = (rng.random((RESAMPLES, len(logs), counts.max())) * counts[tasks][..., None]).astype(int)
    counted = np.arange(counts.max()) < counts[tasks][..., None]
    means = (padded[tasks[..., None], drawn] * counted).sum(axis=2) / counts[tasks]
    low, high = np.exp(np.quantile(means.mean(axis=1), [0.025, 0.975]))
    return float(low), float(high)


# ---------------------------------------------------------------------- the rest


def regret(lines: list[Line]) -> list[dict[str, Any]]:
    """1 - share of the table's hypervolume at parts of the budget: mean over tasks, and over seeds within each."""
    groups: dict[tuple[str, str], dict[str, list[Line]]] = {}
    for line in lines:
        groups.setdefault((problem(line), line["policy"]), {}).setdefault(line["task"], []).append(line)
    return [
        {
            "problem": name,
            "scored_on": scored_on,
            "policy": policy,
            "at": at,
            "regret": _mean(
                _mean(1 - share_at(line[scored_on], at / 100 * line["budget_usd"]) for line in tasks[task])
                for task in tasks
            ),
            "tasks": len(tasks),
        }
        for (name, policy), tasks in groups.items()
        for scored_on in ("validation", "test")
        for at in REGRET_AT
    ]


def calibration(lines: list[Line]) -> list[dict[str, Any]]:
    """How often the logarithm of the learned objective fell into the central 50, 80 and 95 % of what was forecast.

    Forecasts are those at decisions, to the next rung and to the last epoch, also of trials that did not go on
    (`search_peers.calibration`).
    """
    from scipy.special import ndtri

    found = []
    families = sorted({(line["policy"], family(line)) for line in lines})
    for (policy, name), is_last in itertools.product(families, (False, True)):
        rows = [
            row[1:]
            for line in lines
            if (line["policy"], family(line)) == (policy, name)
            for row in line["calibration"]
            if (row[0] == 0) == is_last
        ]
        if not rows:
            continue
        mean, sd, value = np.array(rows).T
        off = (value - mean) / np.maximum(sd, 1e-9)
        found.append(
            {"policy": policy, "family": name, "to": "last epoch" if is_last else "next rung", "forecasts": len(rows)}
            | {"bias_in_sd": float(np.median(off))}
            | {f"within_{part}": float((np.abs(off) <= ndtri(0.5 + part / 200)).mean()) for part in (50, 80, 95)}
        )
    return found


def latency(lines: list[Line]) -> list[dict[str, Any]]:
    """Milliseconds of suggestions and of decisions, by the number of trials at that time."""
    found = []
    for policy in sorted({line["policy"] for line in lines}):
        for kind, column in KINDS:
            pairs = np.array([pair for line in lines if line["policy"] == policy for pair in line[column]])
            for low, high in zip(TRIAL_BUCKETS, (*TRIAL_BUCKETS[1:], math.inf), strict=True):
                some = pairs[(pairs[:, 0] >= low) & (pairs[:, 0] < high), 1] if len(pairs) else pairs
                if len(some):
                    p50, p99 = (float(q) for q in np.quantile(some, [0.5, 0.99]))
                    found.append(
                        {"policy": policy, "kind": kind, "trials_from": low, "p50_ms": p50, "p99_ms": p99}
                        | {"count": len(some)}
                    )
    return found


def seconds(lines: list[Line]) -> list[dict[str, Any]]:
    """Real seconds that simulating one study took."""
    groups: dict[tuple[str, str], list[float]] = {}
    for line in lines:
        groups.setdefault((problem(line), line["policy"]), []).append(line["seconds"])
    return [
        {"problem": name, "policy": policy, "median": float(np.median(all_)), "max": max(all_), "studies": len(all_)}
        for (name, policy), all_ in groups.items()
    ]


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed)


def printed(document: dict[str, Any]) -> str:
    """The comparisons and the regret as tables in Markdown."""
    rows = [
        "| problem | scored on | baseline | at 25 % | at 50 % | at 100 % | by mean curves | worst task at 100 % |",
        "|" + "---|" * 8,
    ]
    groups: dict[tuple[str, str, str], dict[int, dict[str, Any]]] = {}
    for one in document["comparisons"]:
        groups.setdefault((one["problem"], one["scored_on"], one["baseline"]), {})[one["at"]] = one
    for key, at in groups.items():
        cells = [
            f"{at[a]['geo_mean_x_cheaper']:.1f} [{at[a]['low']:.1f}, {at[a]['high']:.1f}]" if a in at else "-"
            for a in AT
        ]
        cells.append(" ".join(f"{at[a]['x_cheaper_by_mean_curves']:.1f}" for a in AT if a in at))
        rows.append(f"| {' | '.join([*key, *cells])} | {at[100]['worst_x']:.1f} ({at[100]['worst_task']}) |")
    rows += ["", "| problem | policy | regret at 25 % | at 50 % | at 100 % | the same on test |", "|" + "---|" * 6]
    regrets: dict[tuple[str, str], dict[tuple[str, int], float]] = {}
    for one in document["regret"]:
        regrets.setdefault((one["problem"], one["policy"]), {})[one["scored_on"], one["at"]] = one["regret"]
    for which, by in regrets.items():
        cells = [f"{by['validation', at]:.3f}" for at in AT]
        on_test = " ".join(f"{by['test', at]:.3f}" for at in AT)
        rows.append(f"| {' | '.join([*which, *cells])} | {on_test} |")
    return "\n".join(rows)
