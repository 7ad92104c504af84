"""Models that leave the study: programs that run without their training code. `exports` is the entrance."""
