"""List prices by device type: the default price of a slot-hour.

Source: AWS EC2 on-demand list prices for Linux in us-east-1, as known in November 2025, divided by the instance's
devices. They make trials comparable; set the price that you pay by `resources.price_per_slot_hour`.
"""

import re
from dataclasses import dataclass

PRICES_DATE = "2025-11"
PRICES_SOURCE = "AWS EC2 on demand, us-east-1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """Dollars per hour of one slot, and the source of the figure."""

    usd_per_slot_hour: float
    source: str


_USD_PER_GPU_HOUR: tuple[tuple[str, float, str], ...] = (
    ("B200", 14.2416, "p6-b200.48xlarge / 8"),
    ("H200", 7.912, "p5en.48xlarge / 8"),
    ("H100", 6.88, "p5.48xlarge / 8"),
    ("A100", 2.7447, "p4d.24xlarge / 8"),
    ("L40S", 1.861, "g6e.xlarge"),
    ("V100", 3.06, "p3.2xlarge"),
    ("A10G", 1.006, "g5.xlarge"),
    ("A10", 1.006, "g5.xlarge"),
    ("L4", 0.8048, "g6.xlarge"),
    ("T4", 0.526, "g4dn.xlarge"),
)
_UNKNOWN_GPU = ("an unknown GPU, taken for an A10G", 1.006, "g5.xlarge")
_SLICE = re.compile(r"\bMIG (?:\d+c\.)?(\d)g\.", re.IGNORECASE)
"""Driver's name of a part of a GPU, such as `MIG 3g.40gb`: the first number counts its compute slices."""
_SLICES = 7  # number of compute slices of a whole GPU, the same for each listed GPU with MIG
USD_PER_CPU_HOUR = 0.04463  # price of one vCPU: c7i.large / 2


def price_of(device: str, device_name: str, cpus_per_rank: int) -> Price:
    """Return the list price of a slot.

    Args:
        device: "cpu" or "cuda".
        device_name: Name of the GPU in the driver or the cluster, such as "NVIDIA H100 80GB HBM3".
    """
    if device == "cpu":
        usd = USD_PER_CPU_HOUR * cpus_per_rank
        return Price(usd_per_slot_hour=usd, source=f"{cpus_per_rank} vCPU of c7i.large, {PRICES_SOURCE}, {PRICES_DATE}")
    words = re.findall(r"[A-Z0-9]+", device_name.upper())  # "A1000" is no "A100"
    what, usd, instance = next((entry for entry in _USD_PER_GPU_HOUR if entry[0] in words), _UNKNOWN_GPU)
    if slice_ := _SLICE.search(device_name):
        what, usd = f"{slice_[1]}/{_SLICES} of {what}", usd * int(slice_[1]) / _SLICES
    return Price(usd_per_slot_hour=usd, source=f"{what}: {instance}, {PRICES_SOURCE}, {PRICES_DATE}")
