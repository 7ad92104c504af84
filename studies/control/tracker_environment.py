"""Environment variables that send a user's own MLflow and Weights & Biases calls to the study's trials."""

import json
from dataclasses import dataclass, field

from studies.storage.views.mlflow_runs import BY_SCRIPT, BY_TAG
from trainers.protocol import Diagnostics


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnLogging:
    """Settings for the user code's own logging; `mlflow` is a tracking URI, empty if the code does not use MLflow."""

    study: str
    study_uid: str
    mlflow: str = ""
    diagnostics: Diagnostics = field(default_factory=Diagnostics)

    def variables(self, trial: int, attempt: int) -> dict[str, str]:
        """Return the variables of an attempt."""
        name = f"trial {trial}"
        found = {"WANDB_RUN_GROUP": self.study, "WANDB_NAME": name}
        if not self.mlflow:
            return found
        tags = {
            BY_TAG: BY_SCRIPT,
            "automl.study": self.study,
            "automl.study_uid": self.study_uid,
            "automl.trial": str(trial),
            "automl.attempt": str(attempt),
            "mlflow.runName": name,
        }
        return found | {
            "MLFLOW_TRACKING_URI": self.mlflow,
            "MLFLOW_EXPERIMENT_NAME": self.study,
            "MLFLOW_RUN_CONTEXT": json.dumps(tags),
        }
