"""Where things are in the repository."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
EXAMPLES = ROOT / "examples"
SHARED = ROOT.parent / "shared"
"""Data and recorded curves beside the repository; tests that need them are left out where they are missing."""
