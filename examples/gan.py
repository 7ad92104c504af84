"""A GAN as a trial: two networks, two optimizers, three losses, and a metric of its own."""

import torch
from own_task import moons
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss
from torch.utils.data import IterableDataset

import automl

NOISE = 8


class Stream(IterableDataset):  # no length: the loader shares it out, and ends its epochs on all ranks at once
    def __iter__(self):
        return iter(moons(2000, seed=0)[0])


def network(inputs, width, outputs):
    middle = nn.Sequential(nn.Linear(width, width), nn.LeakyReLU(0.2))
    return nn.Sequential(nn.Linear(inputs, width), nn.LeakyReLU(0.2), middle, nn.Linear(width, outputs))


def sliced_wasserstein(samples, others, directions=64):
    """Return the mean distance between sorted random projections of two samples (Bonneel et al. 2015, p = 1)."""
    axes = torch.nn.functional.normalize(torch.randn(2, directions), dim=0)
    return ((samples @ axes).sort(dim=0).values - (others @ axes).sort(dim=0).values).abs().mean().item()


def train(trial: automl.Trial) -> None:
    params, device = trial.params, trial.device
    generator_net, judge_net = network(NOISE, params["width"], 2), network(2, params["width"], 1)
    generator, judge = trial.prepare(generator_net), trial.prepare(judge_net)
    adam = {"betas": (0.5, 0.99)}
    generator_steps = torch.optim.Adam(generator.parameters(), lr=trial.learning_rate, **adam)
    judge_steps = torch.optim.Adam(judge.parameters(), lr=trial.learning_rate * params["judge_ratio"], **adam)
    held = moons(1000, seed=1)[0].to(device)
    stream = trial.loader(Stream())
    state = {"generator": generator, "judge": judge, "generator_steps": generator_steps, "judge_steps": judge_steps}
    for _epoch in trial.epochs(**state):
        for real in stream:
            made = generator(torch.randn(len(real), NOISE, device=device))
            truth = torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)]).to(device)
            judge_steps.zero_grad()
            judge_loss = binary_cross_entropy_with_logits(judge(torch.cat([real, made.detach()])), truth)
            judge_loss.backward()
            judge_steps.step()
            judge_net.requires_grad_(False)  # the generator's step must not be an all-reduce of the judge's gradients
            fooled = binary_cross_entropy_with_logits(judge_net(made), torch.ones(len(real), 1, device=device))
            matched = mse_loss(made.mean(dim=0), real.mean(dim=0))
            generator_steps.zero_grad()
            (fooled + params["matching"] * matched).backward()
            generator_steps.step()
            judge_net.requires_grad_(True)
        with torch.no_grad():
            distance = sliced_wasserstein(generator_net(torch.randn(len(held), NOISE, device=device)).cpu(), held.cpu())
        trial.report(distance=trial.mean(distance), judge_loss=judge_loss.detach(), generator_loss=fooled.detach())
