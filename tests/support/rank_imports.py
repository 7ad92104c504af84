"""What ranks load before they train: processes of tests fork from one that has it, where each would take seconds."""

import torch._dynamo  # of DDP
import torch.distributed.fsdp  # noqa: F401

import tests.support.trainer_pool  # noqa: F401
