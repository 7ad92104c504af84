"""The direction of an objective that nobody has named: what the name of its metric says, or a guess that is told."""

from pathlib import Path

import pytest
import yaml

from studies.spec.metric_names import direction_is_guess, likely_direction
from tests.support.command_line import InProcess

FUNCTION = """
space = {"rate": {"type": "float", "low": 0.1, "high": 1.0}}

def train(trial):
    for epoch in trial.epochs():
        trial.report(gain=0.5)
"""


NAMES = {
    ("maximize", False): "val_accuracy val_AUC roc_auc val_F1 f1_macro val_R2 r2_score mAP val_map50 val/mAP50-95 "
    "val_acc1 top5 recall@5 precision_at_10 val_ndcg10 reward episode_return val_psnr SSIM val_mcc val_kappa mrr bleu4 "
    "log_likelihood",
    ("minimize", False): "val_error val_loss val_MSE RMSE val_mae cost_usd val_perplexity val_top5_error dice_loss "
    "accuracy_loss brier_score latency_ms wall_seconds",
    ("maximize", True): "val_cost_sensitive_accuracy val_error_detection_f1",
    ("minimize", True): "gain stop mapped neg_mean_squared_error negative_log_likelihood",
}
"""Metrics by their direction, and whether that is a guess: the last word decides, unless another one contradicts."""


@pytest.mark.parametrize("expected", NAMES)
def test_the_name_of_a_metric_tells_its_direction_or_nothing(expected: tuple[str, bool]) -> None:
    for metric in NAMES[expected].split():
        assert (likely_direction(metric), direction_is_guess(metric)) == expected, metric


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> InProcess:
    (tmp_path / "mine.py").write_text(FUNCTION)
    return InProcess(tmp_path, capsys, monkeypatch)


@pytest.mark.medium
def test_launch_says_how_to_turn_a_guess_and_init_marks_it(place: InProcess) -> None:
    turned = "objectives=[{metric: gain, direction: maximize}, {metric: cost_usd, direction: minimize}]"
    code, out, err = place.run("launch", "mine.py:train", "--dry-run")
    assert code == 0, err
    said = " ".join((out + err).split())
    assert f"gain: minimized, which is a guess; --set '{turned}' changes it" in said
    code, out, err = place.run("launch", "mine.py:train", "--dry-run", "--set", turned)
    said = " ".join((out + err).split())
    assert (code, "gain (maximize)" in said, "is a guess" in said) == (0, True, False)
    assert place.run("init", "mine:train")[0] == 0
    written = (place.folder / "mine.yaml").read_text()
    assert yaml.safe_load(written)["objectives"][0] == {"metric": "gain", "direction": "minimize"}
    assert "direction: minimize}   # the direction is a guess\n" in written
