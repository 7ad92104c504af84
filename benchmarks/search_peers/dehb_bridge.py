"""DEHB, whose configurations are rows of the table before it evolves from them."""

from __future__ import annotations

import tempfile

from ask_tell_bridge import Near, config_space, serve
from ConfigSpace import Configuration
from dehb import DEHB


class Dehb:
    """Asks DEHB with its defaults, from one epoch on."""

    def __init__(self, order: dict, near: Near) -> None:
        self._near = near
        self._space = config_space(order["space"], order["seed"])
        self._rows: dict[int, int] = {}
        self._dehb = DEHB(
            cs=self._space,
            min_fidelity=1,
            max_fidelity=order["epochs"],
            n_workers=1,  # a bookkeeper of processes, which ask and tell does not need
            seed=order["seed"],
            output_path=tempfile.mkdtemp(),
            save_freq="end",
            log_level="ERROR",
        )

    def ask(self) -> tuple[int, int, dict]:
        """Its next job."""
        info = self._dehb.ask()
        number = int(info["config_id"])
        if number not in self._rows:
            self._rows[number], params = self._near(dict(info["config"]))
            info["config"] = Configuration(self._space, values=params)
            vector = self._dehb.configspace_to_vector(info["config"])
            self._dehb.config_repository.configs[number].config = vector
        return self._rows[number], max(1, round(info["fidelity"])), info

    def tell(self, info: dict, values: list[float], usd: float) -> None:
        """The end of a job."""
        self._dehb.tell(info, {"fitness": values[0], "cost": usd})


if __name__ == "__main__":
    serve(Dehb)
