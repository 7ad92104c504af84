"""The task `vision`: idx files and folders of images, bad ones, augmentation, mixup, and that it learns."""

import copy
import gzip
import json
import shutil
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import betaincinv
from torch.nn.functional import cross_entropy

from automl.standalone.errors import InputError
from automl.standalone.image_rows import ImageRows
from automl.standalone.model import rows_of
from tests.support import optional
from tests.support.task_files import metrics_of, real, trained
from tests.support.trainer_pool import run_trial
from tests.trainers.test_epoch_parts import trained_in_parts
from trainers.contract.task_loading import TaskLoadError, load_task
from trainers.local.try_out_task import probe
from trainers.protocol import TaskError, TrialSpec
from trainers.ranks.process_group import Group
from trainers.tasks.pictures.augmentation import Mixup, Partners, beta_quantiles, mixed_loss
from trainers.tasks.vision import Vision

PARAMS = {"optimizer": "adamw", "learning_rate": 0.005, "batch_per_rank": 32, "channels": 4, "depth": 2}


def bars(count: int, seed: int = 0, side: int = 12) -> tuple[Any, Any]:
    """Noisy images of an upright (0) or a lying (1) bar."""
    draw = np.random.default_rng(seed)
    pixels = draw.integers(0, 60, (count, side, side), dtype=np.uint8)
    labels = np.arange(count, dtype=np.uint8) % 2
    for image, label in zip(pixels, labels, strict=True):
        place = draw.integers(1, side - 1)
        image[place, :] = 255 if label else image[place, :]
        image[:, place] = image[:, place] if label else 255
    return pixels, labels


def idx(array: Any) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def image_folder(path: Path, count: int = 60, seed: int = 0, mode: str = "RGB", side: int = 12) -> Path:
    """One sub-folder for each class."""
    image = optional.module("PIL.Image")
    pixels, labels = bars(count, seed, side)
    for number, (one, label) in enumerate(zip(pixels, labels, strict=True)):
        (path / ("lying" if label else "upright")).mkdir(parents=True, exist_ok=True)
        image.fromarray(one).convert(mode).save(path / ("lying" if label else "upright") / f"{number:03}.png")
    return path


def test_idx_files_are_read_as_they_are_and_their_normalisation_is_among_the_weights(folder: Path) -> None:
    task = Vision(str(folder))
    pixels, labels = bars(60, 1)
    inputs, targets = task.test_data({})
    assert inputs.dtype == torch.uint8
    assert torch.equal(inputs[:, 0], torch.from_numpy(pixels))
    assert torch.equal(targets, torch.from_numpy(labels.astype(np.int64)))
    assert [len(part[1]) for part in task._parts.values()] == [180, 20, 60]
    assert task.classes == ("0", "1")
    task = Vision(str(folder))
    weights = task.model({}).state_dict()
    inputs = task.train_data({})[0].double()
    assert weights["mean"].item() == pytest.approx(inputs.mean().item(), rel=1e-5)
    assert weights["deviation"].item() == pytest.approx(inputs.std(correction=0).item(), rel=1e-5)


@pytest.mark.medium
@pytest.mark.parametrize("architecture", ["cnn", "residual"])
def test_it_learns(folder: Path, architecture: str) -> None:
    task, trainer = trained("vision", {"train": str(folder)}, {**PARAMS, "architecture": architecture, "shift": 1}, 12)
    assert metrics_of(task, trainer, "test")["val_accuracy"] > 0.9


def test_folders_of_images_with_a_test_part(tmp_path: Path) -> None:
    image_folder(tmp_path / "train", 80)
    image_folder(tmp_path / "test", 20, seed=1)
    task = Vision(str(tmp_path))
    assert task.classes == ("lying", "upright")
    assert task.train_data({})[0].shape[1:] == (3, 12, 12)
    assert len(task.test_data({})[1]) == 20
    assert task.space().parameter("flip").choices == (False, True)  # type: ignore[union-attr]
    _, trainer = trained("vision", {"train": str(tmp_path)}, PARAMS, 12)
    files = sorted((tmp_path / "test" / "lying").iterdir())[:5]
    said = task.decode(trainer.module.eval()(task.encode(files)))
    assert said.count("lying") >= 4


def test_images_of_many_sizes_are_brought_to_one_and_bright_ones_of_sixteen_bits_stay_different(tmp_path: Path) -> None:
    image_folder(tmp_path / "a", 20, side=30)
    image_folder(tmp_path / "a" / "more", 0)
    from PIL import Image

    Image.new("L", (90, 40), 255).save(tmp_path / "a" / "lying" / "wide.png")
    assert Vision(str(tmp_path / "a")).train_data({})[0].shape[2:] == (30, 30)
    assert Vision(str(tmp_path / "a"), size=16, grey=True).train_data({})[0].shape[1:] == (1, 16, 16)
    from PIL import Image

    image_folder(tmp_path, 20, mode="L")
    deep = np.linspace(0, 65535, 144).reshape(12, 12).astype(np.uint16)
    Image.fromarray(deep).save(tmp_path / "lying" / "deep.png")
    assert len(Vision(str(tmp_path)).encode([tmp_path / "lying" / "deep.png"]).unique()) > 100


DEEP: dict[str, tuple[str, str, float, float]] = {
    "12 bits": ("uint16", "tif", 0, 4095),
    "10 bits": ("uint16", "png", 0, 1023),
    "16 bits": ("uint16", "png", 0, 65535),
    "signed": ("int32", "tif", -1000, 1000),
    "floats to 1": ("float32", "tif", 0, 1),
    "floats to 255": ("float32", "tif", 0, 255),
    "floats from -1": ("float32", "tif", -1, 1),
}


@pytest.mark.parametrize("kind", DEEP)
def test_deep_images_are_as_bright_as_others_and_exported_models_agree(kind: str, tmp_path: Path) -> None:
    image = optional.module("PIL.Image")
    form, ending, low, high = DEEP[kind]
    pixels, labels = bars(20)
    pixels[0, 0, :2] = 0, 255
    for number, (one, label) in enumerate(zip(pixels, labels, strict=True)):
        for folder, picture, name in (
            ("plain", one, "png"),
            ("deep", (one / 255 * (high - low) + low).round(0 if "int" in form else 6).astype(form), ending),
        ):
            (tmp_path / folder / str(label)).mkdir(parents=True, exist_ok=True)
            image.fromarray(picture).save(tmp_path / folder / str(label) / f"{number}.{name}")
    plain, deep = (Vision(str(tmp_path / folder), reading=2) for folder in ("plain", "deep"))
    difference = plain.train_data({})[0].int() - deep.train_data({})[0].int()
    assert difference.abs().max() <= 1
    assert "0 is black" in str(deep.data_check()) or low < 0
    file = tmp_path / "deep" / "0" / f"0.{ending}"
    exported = rows_of(json.loads(json.dumps(deep.preprocessing()))).encode(file, 0).numbers
    assert bytes(exported) == deep.encode([file]).numpy().tobytes()
    if "f" in form:
        with pytest.raises(TaskError, match="it has floats for each pixel, unlike the training images"):
            plain.encode([file])
        image.fromarray(np.full((12, 12), np.nan, "float32")).save(file)
        with pytest.raises(TaskError, match="a pixel is infinite or not a number"):
            Vision(str(tmp_path / "deep"), reading=2)


def test_transparent_pixels_are_white_and_palettes_are_colours(tmp_path: Path) -> None:
    image = optional.module("PIL.Image")
    image_folder(tmp_path, 20, mode="P")
    clear = np.zeros((12, 12, 4), dtype=np.uint8)
    clear[6:] = 255
    image.fromarray(clear).save(tmp_path / "clear.png")
    task = Vision(str(tmp_path), reading=2)
    assert task.encode([tmp_path / "clear.png"]).unique().tolist() == [255]
    assert Vision(str(tmp_path)).encode([tmp_path / "clear.png"]).unique().tolist() == [0, 255]


@pytest.mark.parametrize("hidden", [".ipynb_checkpoints", "__MACOSX", ".thumbnails", "__pycache__", "@eaDir"])
def test_hidden_folders_are_no_classes_and_parts_are_no_classes(tmp_path: Path, hidden: str) -> None:
    image_folder(tmp_path, 40)
    for place in (tmp_path / hidden, tmp_path / "lying" / hidden):
        shutil.copytree(tmp_path / "upright", place)
    image_folder(tmp_path / "Test", 10, seed=3)
    task = Vision(str(tmp_path), reading=2)
    assert task.classes == ("lying", "upright")
    assert {part: len(one[1]) for part, one in task._parts.items()} == {"train": 36, "validation": 4, "test": 10}
    shutil.copytree(tmp_path / "Test", tmp_path / "parts" / "test")
    shutil.copytree(tmp_path / "Test", tmp_path / "parts" / "val")
    with pytest.raises(TaskError, match="found val, test, but no folder train"):
        Vision(str(tmp_path / "parts"), reading=2)
    assert hidden in Vision(str(tmp_path)).classes, "an existing study keeps its classes"


def test_files_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    image_folder(tmp_path, 40)
    assert Vision(str(tmp_path), reading=2).data_check()["findings"] == []
    for number in range(3):
        (tmp_path / "lying" / f"{number}.HEIC").write_bytes(b"")
    (tmp_path / "lying" / "notes.txt").write_text("")
    (tmp_path / "upright" / "IMG_1").write_bytes(b"")
    (tmp_path / "third").mkdir()
    (tmp_path / "third" / "1.jfif").write_bytes(b"")
    assert Vision(str(tmp_path), reading=2).data_check()["findings"] == [
        "3 files of 'lying' are .heic, which cannot be read: convert them to PNG or JPEG",
        "1 files of 'third' are .jfif, which cannot be read: convert them to PNG or JPEG",
        "1 files of 'upright' are without an ending, which cannot be read: convert them to PNG or JPEG",
    ]


@pytest.mark.parametrize("kind", ["postscript", "icon", "many pixels", "bomb"])
def test_files_that_start_programs_or_fill_the_memory_are_refused(tmp_path: Path, kind: str) -> None:
    """Pillow gives PostScript to Ghostscript whatever the file's name is; a header may promise any number of pixels."""
    image = optional.module("PIL.Image")
    for number in range(4):
        folder = tmp_path / "ab"[number % 2]
        folder.mkdir(exist_ok=True)
        image.new("RGB", (8, 8), (number, 0, 0)).save(folder / f"{number}.png")
    path = tmp_path / "a" / "0.png"
    if kind == "postscript":
        path.write_bytes(
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n(out) (w) file\nshowpage\n%%EOF\n"
        )
    elif kind == "icon":
        image.new("RGB", (8, 8)).save(path, format="ICO")
    else:
        side = 13_000 if kind == "many pixels" else 60_000
        header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
        chunk = struct.pack(">I", len(header)) + b"IHDR" + header + struct.pack(">I", zlib.crc32(b"IHDR" + header))
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk)
    with pytest.raises(TaskError, match=r"a/0\.png: the file is not a complete image"):
        Vision(str(tmp_path), reading=2)
    row = ImageRows({"channels": 3, "height": 8, "width": 8})
    with pytest.raises(InputError, match="is not a complete image"):
        row.encode(str(path), 0)


def test_copies_of_an_image_are_in_one_part(tmp_path: Path) -> None:
    image_folder(tmp_path, 30)
    for file in sorted(tmp_path.glob("*/*.png")):
        shutil.copy(file, file.with_name(f"again_{file.name}"))
    task = Vision(str(tmp_path), reading=2)
    training, validation = ({one.tobytes() for one in task._parts[part][0]} for part in ("train", "validation"))
    assert not training & validation
    assert "training images are copies of validation or test images, and left out" in task.data_check()["findings"][0]
    shutil.copytree(tmp_path / "lying", tmp_path / "both" / "train" / "lying")
    shutil.copytree(tmp_path / "upright", tmp_path / "both" / "train" / "upright")
    shutil.copytree(tmp_path / "both" / "train", tmp_path / "both" / "test")
    kept = Vision(str(tmp_path / "both"), reading=2)
    assert "kept, as their class has no others" in kept.data_check()["findings"][0]


def test_augmentation_is_for_training_only_and_not_among_the_weights(folder: Path) -> None:
    task = Vision(str(folder))
    model = task.model({"shift": 3, "flip": True, "operations": 2, "channels": 4})
    inputs = task.train_data({})[0][:8]
    training = model(inputs)
    assert not torch.equal(training, model.eval()(inputs))
    assert torch.equal(model(inputs), model(inputs))
    assert model.state_dict().keys() == task.model({"channels": 4}).state_dict().keys()


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"operations": 9}, "operations: found 9, allowed: a whole number from 0 to 8"),
        ({"magnitude": 1.5}, "magnitude: found 1.5, allowed: "),
        *[({"mixup": one}, "mixup: found .*, allowed: a number from 0 to 10$") for one in (-0.1, 11, True, "much")],
    ],
)
def test_a_policy_out_of_bounds_is_refused(folder: Path, params: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=f"^{message}"):
        Vision(str(folder)).model(params)


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_first_trials_of_images_are_in_the_default_space(tmp_path: Path, mode: str) -> None:
    task = Vision(str(image_folder(tmp_path / "images", mode=mode)))
    (first,) = task.first_trials()
    task.space().check(first)
    assert first["flip"] is (mode == "RGB")


def test_the_probe_finds_nothing_wrong(folder: Path) -> None:
    answer = probe("vision", {"train": str(folder)}, [])
    assert answer["error"] is None
    assert answer["samples"] == 180


def refusal(**options: Any) -> str:
    with pytest.raises(TaskLoadError) as caught:
        load_task("vision", options)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix("task 'vision': ")


def test_damaged_idx_files(folder: Path) -> None:
    images, labels = folder / "train-images-idx3-ubyte.gz", folder / "train-labels-idx1-ubyte"
    whole = gzip.decompress(images.read_bytes())
    images.write_bytes(gzip.compress(whole[:-10]))
    message = refusal(train=str(folder))
    assert message.startswith(str(images))
    assert "28790 bytes" in message
    assert "28800, for 200 x 12 x 12" in message
    images.write_bytes(gzip.compress(b"GIF8" + whole))
    assert "first bytes: found '47 49 46 38', allowed: 00 00 08 03" in refusal(train=str(folder))
    images.write_bytes(gzip.compress(whole)[:500])
    assert "end-of-stream" in refusal(train=str(folder))
    images.write_bytes(gzip.compress(whole))
    labels.write_bytes(idx(bars(199)[1]))
    assert "found 199 labels, allowed: 200" in refusal(train=str(folder))


def test_classes_of_one_image_or_of_the_test_alone_are_refused_and_labels_count_from_any(folder: Path) -> None:
    labels = bars(200)[1]
    labels[0] = 2
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(labels))
    assert "found 1 images of the class '2'. Each class needs two" in refusal(train=str(folder))
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(bars(200)[1]))
    (folder / "t10k-labels-idx1-ubyte").write_bytes(idx(bars(60)[1] + 1))
    assert "found the class 2, allowed: the training images' classes, 0, 1" in refusal(train=str(folder))
    for part, count, seed in (("train", 200, 0), ("t10k", 60, 1)):
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(bars(count, seed)[1] + 1))
    for path in list(folder.iterdir()):
        path.rename(folder / f"emnist-letters-{path.name.replace('t10k', 'test')}")
    task = Vision(str(folder))
    assert task.classes == ("1", "2")
    assert task.test_data({})[1].tolist() == [0, 1] * 30


def test_bad_folders_and_what_is_missing(tmp_path: Path) -> None:
    assert "no such folder" in refusal(train=str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    assert "found 0 sub-folders with images" in refusal(train=str(tmp_path / "empty"))
    image_folder(tmp_path / "train", 20)
    bad = tmp_path / "train" / "lying" / "cut.png"
    bad.write_bytes((tmp_path / "train" / "lying" / "001.png").read_bytes()[:60])
    message = refusal(train=str(tmp_path / "train"))
    assert message.startswith(str(bad))
    assert "not a complete image" in message
    bad.unlink()
    image_folder(tmp_path / "test", 4)
    (tmp_path / "test" / "lying").rename(tmp_path / "test" / "leaning")
    assert "found the class 'leaning', allowed: the training folder's, lying, upright" in refusal(
        train=str(tmp_path / "train"), test=str(tmp_path / "test")
    )


def test_without_test_images_test_data_says_so(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="task_options"):
        Vision(str(image_folder(tmp_path, 20))).test_data({})


@pytest.mark.medium
def test_mnist_is_read_whole() -> None:
    task = Vision(real("mnist"))
    assert sum(len(part[1]) for part in task._parts.values()) == 70_000
    assert task._mean[0] == pytest.approx(0.1307 * 255, rel=0.01)
    assert len(task.classes) == 10


@pytest.mark.parametrize("rows", ["a.png", [3]])
def test_new_rows_that_are_no_paths_are_refused(folder: Path, rows: Any) -> None:
    task = Vision(str(folder))
    with pytest.raises(TaskError, match=r"^rows: .*allowed: a list of image files$"):
        task.encode(rows)


@pytest.mark.parametrize("policy", [{"shift": 1, "operations": 2, "magnitude": 0.5}, {"shift": 1, "mixup": 0.8}])
def test_two_ranks_and_a_resumed_trial_augment_and_mix_as_one_rank_does(folder, tmp_path, ranks, policy) -> None:
    """What is drawn for a sample depends neither on the number of ranks nor on an interruption."""

    def spec(world_size: int = 1, **more: Any) -> TrialSpec:
        params = {"learning_rate": 0.1, "batch_per_rank": 20 // world_size, "channels": 4, **policy}
        training = {"epochs": 2, "reference_batch": 20}
        return TrialSpec(
            study="test", trial=0, task="vision", task_options={"train": str(folder)}, params=params,
            training=training, world_size=world_size, **more,
        )  # fmt: skip

    one = ranks.run(1, run_trial, spec())[0]["weights"]
    two = ranks.run(2, run_trial, spec(2))[0]["weights"]
    assert max((one[name] - two[name]).abs().max().item() for name in one) < 1e-4
    halved = spec(checkpoint_folder=str(tmp_path / "kept"))
    stopped = trained_in_parts(Group(), halved, ends_at_step=12)  # the third of nine steps of the second epoch
    resumed = trained_in_parts(Group(), replace(halved, resume_from=stopped["parts"][0].checkpoint, attempt=2))
    whole = trained_in_parts(Group(), spec())
    assert all(torch.equal(whole["weights"][name], resumed["weights"][name]) for name in one)


@pytest.fixture
def partners() -> Partners:
    pixels, labels = bars(200)
    return Partners(torch.from_numpy(pixels)[:, None], torch.from_numpy(labels).long())


def test_partners_are_training_images_with_their_classes_and_shares_are_of_the_beta_distribution(partners) -> None:
    mixup = Mixup(0.4, partners, 2)
    mixup.set_epoch_seed(3)
    others, shares, counts = mixup.draw(partners.pixels)
    assert others.dtype == torch.uint8
    places = [int((partners.pixels == one).flatten(1).all(1).nonzero()[0]) for one in others]
    assert len(set(places)) > 200 / 2  # of all images, and not of a few
    kept = 1 - shares[:, 0, 0, 0]
    expected = torch.zeros(200, 2)
    expected[torch.arange(200), partners.labels[places]] = kept
    assert torch.allclose(counts, expected)
    assert kept.mean().item() == pytest.approx(0.5, abs=0.1)
    assert kept.var().item() == pytest.approx(1 / (4 * (2 * 0.4 + 1)), rel=0.2)


@pytest.mark.parametrize("alpha", [0.001, 0.1, 0.5, 1.0, 2.5, 10.0])
def test_shares_are_quantiles_of_the_beta_distribution(alpha: float) -> None:
    found = beta_quantiles(alpha, 512)
    assert np.allclose(found, betaincinv(alpha, alpha, (np.arange(512) + 0.5) / 512), atol=1e-4)


def test_an_image_is_mixed_alike_in_any_batch_and_the_loss_is_that_of_both_classes(partners: Partners) -> None:
    mixup = Mixup(1.0, partners, 2)
    mixup.set_epoch_seed(3)
    whole = mixup.draw(partners.pixels)
    part = mixup.draw(partners.pixels[7:30])
    assert all(torch.equal(one[7:30], other) for one, other in zip(whole, part, strict=True))
    mixup.set_epoch_seed(4)
    assert not torch.equal(mixup.draw(partners.pixels)[1], whole[1])
    logits, targets = torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])
    others, kept = torch.tensor([2, 1, 0, 0, 2]), torch.tensor([1.0, 0.3, 0.5, 0.2, 0.0])
    counts = torch.zeros(5, 3)
    counts[torch.arange(5), others] = 1 - kept
    for smoothing in (0.0, 0.1):
        first, second = (
            cross_entropy(logits, one, reduction="none", label_smoothing=smoothing) for one in (targets, others)
        )
        found = mixed_loss(torch.stack([logits, counts], dim=1), targets, smoothing)
        assert torch.allclose(found, kept * first + (1 - kept) * second, atol=1e-6)


def test_mixup_is_for_training_only_and_can_be_learned_from(folder: Path) -> None:
    task = Vision(str(folder))
    torch.manual_seed(0)
    plain = task.model(PARAMS)
    torch.manual_seed(0)
    mixed: Any = task.model({**PARAMS, "mixup": 0.5})
    assert plain.state_dict().keys() == mixed.state_dict().keys()
    rows, targets = (one[:20] for one in task.train_data({}))
    outputs = mixed(rows)
    assert outputs.shape == (20, 2, 2)
    assert task.loss(outputs, targets).shape == task.smoothed_loss(outputs, targets, 0.1).shape == (20,)
    assert torch.equal(mixed.eval()(rows), plain.eval()(rows))
    assert copy.deepcopy(mixed).mixup._partners is mixed.mixup._partners  # the data are there once
    task, trainer = trained("vision", {"train": str(folder)}, {**PARAMS, "mixup": 0.3, "label_smoothing": 0.05}, 8)
    assert metrics_of(task, trainer, "validation")["val_accuracy"] > 0.9
