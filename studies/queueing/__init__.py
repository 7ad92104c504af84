"""A team's queue of jobs: whose job is next, the workers that run jobs, and the accounts that pay for them."""
