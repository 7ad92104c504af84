"""Augmentation of images: what each operation does, and that it depends on seed, epoch and image alone."""

from typing import Any

import pytest
import torch
from torch import Tensor

from trainers.data.seeds import derive
from trainers.tasks.pictures.augmentation import OPERATIONS, Augmentation, augmented, flipped, shifted, uniform


def noise(count: int, channels: int = 1, side: int = 12) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(0, 256, (count, channels, side, side), dtype=torch.uint8, generator=generator)


def policy(name: str, *, sign: float = 0.9, count: int = 4) -> Tensor:
    """Draws that choose one operation; the place of what is erased is the middle."""
    return torch.tensor([(OPERATIONS.index(name) + 0.5) / len(OPERATIONS), sign, 0.5, 0.5]).expand(count, 1, 4)


def augmentation(epoch: int = 1, **changed: Any) -> Augmentation:
    module = Augmentation(**{"shift": 2, "flip": True, "operations": 2, "magnitude": 0.5, **changed})
    module.set_epoch_seed(derive("augmentation", 3, epoch))
    return module


def test_draws_are_uniform_unrelated_and_changed_by_one_pixel_and_the_epoch() -> None:
    draws = uniform(noise(4000), torch.tensor(7), 6)
    assert 0 <= draws.min() < 0.001
    assert 0.999 < draws.max() < 1
    assert torch.allclose(draws.mean(dim=0), torch.tensor(0.5), atol=0.02)
    assert torch.allclose(torch.corrcoef(draws.T), torch.eye(6), atol=0.06)
    pixels = noise(1).repeat(2, 1, 1, 1)
    pixels[1, 0, 4, 4] ^= 1
    one, other = uniform(pixels, torch.tensor(7), 8)
    assert not (one == other).any()
    assert not (one == uniform(pixels, torch.tensor(8), 8)[0]).any()


@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_is_changed_alike_in_any_batch_and_otherwise_in_another_epoch(channels: int) -> None:
    pixels, module = noise(32, channels), augmentation()
    whole = module(pixels)
    order = torch.randperm(32)
    torch.manual_seed(1)
    parts = torch.cat([module(part) for part in pixels[order].split([1, 20, 11])])
    assert torch.equal(whole[order], parts)
    assert not torch.equal(whole, augmentation(2)(pixels))


def test_without_augmentation_or_magnitude_nothing_changes() -> None:
    pixels = noise(4)
    assert augmentation(shift=0, flip=False, operations=0)(pixels) is pixels
    pixels = noise(64, 3)
    changed = augmentation(shift=0, flip=False, magnitude=0.0)(pixels)
    assert torch.allclose(changed, pixels.float(), atol=0.02)


def test_shifts_move_whole_images_by_at_most_so_much_and_half_are_mirrored() -> None:
    pixels = torch.zeros(64, 1, 9, 9, dtype=torch.uint8)
    pixels[:, :, 4, 4] = 255
    moved = shifted(pixels, 2, torch.rand(64, 2, generator=torch.Generator().manual_seed(3)))
    places = moved.flatten(1).argmax(dim=1)
    rows, columns = places // 9, places % 9
    assert moved.flatten(1).count_nonzero(dim=1).tolist() == [1] * 64
    assert (int(rows.min()), int(rows.max()), int(columns.min()), int(columns.max())) == (2, 6, 2, 6)
    pixels = torch.zeros(2, 1, 3, 3, dtype=torch.uint8)
    pixels[:, :, 1, 0] = 255
    assert flipped(pixels, torch.tensor([0.49, 0.51]))[:, 0, 1].tolist() == [[0, 0, 255], [255, 0, 0]]


@pytest.mark.parametrize(("sign", "column"), [(0.9, 2), (0.1, 8)])
def test_a_shift_of_the_policy_is_a_share_of_the_width(sign: float, column: int) -> None:
    pixels = torch.zeros(4, 1, 11, 11, dtype=torch.uint8)
    pixels[:, :, 5, 5] = 200
    moved = augmented(pixels, 10 / 11, policy("shift_x", sign=sign))
    assert moved[0, 0, 5, column] == pytest.approx(200, abs=0.1)
    assert moved[0].sum() == pytest.approx(200, abs=0.5)


def test_a_rotation_is_of_thirty_degrees_and_a_shear_leaves_the_middle_row() -> None:
    pixels = torch.zeros(4, 1, 41, 81, dtype=torch.uint8)
    pixels[:, :, 20, 40:] = 255
    turned = augmented(pixels, 1.0, policy("rotation"))[0, 0]
    column = 40 + 26
    row = turned[:, column].argmax().item()
    assert abs(row - 20) == pytest.approx(26 * 3**-0.5, abs=1)
    pixels = torch.zeros(4, 1, 21, 21, dtype=torch.uint8)
    pixels[:, :, :, 10] = 255
    sheared = augmented(pixels, 1.0, policy("shear_x"))[0, 0].argmax(dim=1)
    assert (sheared[10], abs(int(sheared[0]) - 10), int(sheared[0] + sheared[20])) == (10, 3, 20)


def test_brightness_scales_contrast_keeps_the_mean_and_erasing_hides_a_rectangle() -> None:
    pixels = noise(4) // 4 + 64
    dark = augmented(pixels, 0.5, policy("brightness", sign=0.1))
    assert torch.allclose(dark, pixels * 0.55, atol=0.02)
    flat = augmented(pixels, 0.5, policy("contrast", sign=0.1))
    assert torch.allclose(flat.mean(dim=(1, 2, 3)), pixels.float().mean(dim=(1, 2, 3)), atol=0.02)
    assert flat.std() == pytest.approx(0.55 * pixels.float().std(), rel=0.01)
    assert augmented(pixels, 1.0, policy("brightness")).max() <= 255
    pixels = noise(4)
    erased = augmented(pixels, 1.0, policy("erasing"))
    inner = erased[0, 0, 3:9, 3:9]
    assert torch.allclose(inner, pixels[0].float().mean(), atol=0.01)
    assert torch.allclose(erased[0, 0, :3], pixels[0, 0, :3].float(), atol=0.01)
