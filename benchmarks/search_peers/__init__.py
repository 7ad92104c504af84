"""The contestants of search.py that are no features of ours: each a suggester or a pruner for simulated studies."""
