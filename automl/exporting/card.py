"""The model card of an export: the model's purpose, quality, cost and use."""

import json
import re
import struct
import zlib
from collections.abc import Mapping
from typing import Any

from reports.phrases import percent, plural, usd
from search_spaces.messages import one_line
from trainers.protocol import OUR_METRICS

_OF_MODELS = frozenset({"val_loss", "model_parameters", "latency_ms"})
_KINDS = {
    "table": ("rows of a table: mappings from column to cell", "[{{{cells}}}]"),
    "text": ("texts", '["a text"]'),
    "image": ("image files", '["input_example.png"]'),
    "array": ("numbers of the shape {shape}", "rows"),
}
_ANSWERS = {
    "classes": "`label`, `confidence` and the `probabilities` of all labels",
    "number": "`value`, and `low` and `high`, between which {share} of the true values are expected",
    "next_token": "the most likely next `token`, its `confidence`, and the `probabilities` of the likeliest",
    "array": "the model's `outputs` as they are",
}
_OUT_OF_FOLD = (
    "The validation metrics of each row come from the model of the trial that had not seen the row. This model "
    "answers with the mean of all these models, which is usually slightly better: expect the metrics of the test "
    "part, or without a test part at least the validation metrics.\n"
)
EXAMPLE_IMAGE = "input_example.png"  # name of the example file in an image model's package


def card_of(manifest: Mapping[str, Any], *, file: str = "") -> str:
    """Return the model card as Markdown with Hugging Face's metadata. `file` names a single-file model."""
    metrics = manifest["metrics"].items()
    told = {name: value for name, value in metrics if name not in OUR_METRICS or name in _OF_MODELS}
    parts = [
        _head(manifest),
        _title(manifest),
        _about(manifest),
        _ensemble(manifest),
        _table("Metrics", "metric", "validation", told),
        _OUT_OF_FOLD if manifest["data"].get("out_of_fold") else "",
        _confirmation(manifest),
        _table("Parameters", "parameter", "value", {} if "members" in manifest else manifest["params"]),
        _use_of_file(manifest, file) if file else _use(manifest),
    ]
    return "\n".join(part for part in parts if part)


def _title(manifest: Mapping[str, Any]) -> str:
    if "members" in manifest:
        return f"# {_plain(manifest['study'])}, an ensemble of {len(manifest['members'])} of its models\n"
    return f"# {_plain(manifest['study'])}, trial {manifest['trial']} after epoch {manifest['epoch']}\n"


def _head(manifest: Mapping[str, Any]) -> str:
    licence = json.dumps((manifest["licence"] or "other").lower())  # any JSON text is also a YAML text
    tag = json.dumps(manifest["task"].rpartition(":")[2])
    return f"---\nlicense: {licence}\nlibrary_name: pytorch\ntags:\n- {tag}\n---\n"


def _about(manifest: Mapping[str, Any]) -> str:
    data = manifest["data"]
    samples = f"{data['training_samples']} samples" if "training_samples" in data else "unknown"
    checksum = f", SHA-256 {data['sha256'][:16]}..." if "sha256" in data else ""
    rows = [
        ("Task", _code(manifest["task"])),
        ("Trained on", f"{samples}{checksum}"),
        ("Training cost", usd(manifest["cost_usd"]) if manifest.get("cost_usd") is not None else "unknown"),
        ("Study cost", usd(manifest["study_cost_usd"]) if manifest.get("study_cost_usd") is not None else "unknown"),
        ("Licence", _plain(manifest["licence"] or "") or "not stated: fill it in before you pass the model on"),
        ("Made with", ", ".join(f"{name} {one}" for name, one in manifest["environment"].items())),
    ]
    return "".join(f"- {name}: {value}\n" for name, value in rows)


def _ensemble(manifest: Mapping[str, Any]) -> str:
    if "members" in manifest:
        return _members(manifest)
    count = len(manifest["programs"])
    said = f"These are {count} models of one configuration, trained with other seeds. Answers and metrics are means.\n"
    return said if count > 1 else ""


def _members(manifest: Mapping[str, Any]) -> str:
    told = manifest["ensemble"]
    weights = {one["model"]: one["weight"] for one in manifest["members"]}
    parts = [
        f"{part}: {told['metric']} {_cell(told[part]['ensemble'])}, its best member {_cell(told[part]['best_member'])}"
        for part in ("validation", "test")
        if told[part] is not None
    ]
    lines = "".join(f"- {part}\n" for part in [*parts, f"price of a prediction: {usd(told['usd_per_prediction'])}"])
    said = "Chosen greedily on the validation part. Answers are means over the models, with these weights.\n"
    return f"{said}\n{lines}\n{_table('Members', 'model', 'weight', weights)}"


def _table(title: str, first: str, second: str, rows: Mapping[str, Any]) -> str:
    lines = "".join(f"| {_code(name)} | {_cell(value)} |\n" for name, value in rows.items())
    return f"## {title}\n\n| {first} | {second} |\n|---|---|\n{lines}" if rows else ""


def _confirmation(manifest: Mapping[str, Any]) -> str:
    confirmed = manifest.get("confirmed")
    if "members" in manifest:
        return ""
    if not confirmed:
        return "The search chose the best of many figures, so they are optimistic. No fresh seeds confirmed them.\n"
    title = f"Confirmed with {plural(confirmed['seeds'], 'fresh seed')}, on the {confirmed['measured_on']} part"
    if "alone" in confirmed:
        alone = {name: f"{_mean(one)} alone" for name, one in confirmed["alone"].items()}
        rows = {
            name: ", ".join([f"{one['mean']:.6g}", *([alone[name]] if name in alone else [])])
            for name, one in confirmed["metrics"].items()
        }
        return _table(title, "metric", "together, and mean ± deviation of the seeds", rows)
    rows = {name: _mean(one) for name, one in confirmed["metrics"].items()}
    return _table(title, "metric", "mean ± deviation", rows)


def _mean(spread: Mapping[str, Any]) -> str:
    deviation = "" if spread["deviation"] is None else f" ± {spread['deviation']:.2g}"
    return f"{spread['mean']:.6g}{deviation}"


def _use_of_file(manifest: Mapping[str, Any], file: str) -> str:
    answers = "" if manifest["rows"] is None else f"\n`automl predict {file} ROWS` predicts rows of a file.\n"
    if file.endswith(".onnx"):
        code = f'import onnxruntime\n\nsession = onnxruntime.InferenceSession("{file}")'
    else:
        code = f'import torch\n\nmodel = torch.export.load("{file}").module()'
    return f"## Use\n\n```python\n{code}\n```\n{answers}"


def _use(manifest: Mapping[str, Any]) -> str:
    rows, answers = manifest["rows"], manifest["answers"]
    if rows is None:
        return _use_of_file(manifest, "model.pt2")
    what, example = _KINDS[rows["kind"]]
    columns = [one["name"] for one in (*rows["numbers"], *rows["categories"])] if rows["kind"] == "table" else []
    cells = ", ".join(f"{json.dumps(name)}: ..." for name in columns[:3]) + (", ..." if len(columns) > 3 else "")
    returned = _ANSWERS[answers["kind"]].format(share=percent(answers.get("intervals", {}).get("share", 0.95)))
    return (
        f"## Use\n\nTakes {what.format(shape=rows.get('shape'))}; returns {returned}.\n{_threshold(answers)}\n"
        "```\npip install -r requirements.txt\n```\n\n"
        "```python\nfrom predictor.model import load\n\n"
        f'model = load(".")\nprint(model.predict({example.format(cells=cells)}))\n```\n'
    )


def _threshold(answers: Mapping[str, Any]) -> str:
    found = answers.get("threshold")
    if found is None:
        return ""
    return (
        f"The label is {_code(found['label'])} from a probability of {_cell(found['at_least'])} on, the threshold "
        f"with the best {found['metric']} on the validation part: {_cell(found['value'])}, and "
        f"{_cell(found['value_at_half'])} with 0.5.\n"
    )


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else _plain(value)


def _plain(text: object) -> str:
    """Escape a text to one line of Markdown without code, links, images or HTML."""
    return re.sub(r"([`|<>\\\[\]!*])", r"\\\1", one_line(str(text)))


def _code(text: object) -> str:
    """Return a text as a Markdown code span on one line, also for tables."""
    plain = one_line(str(text)).replace("|", "\\|")
    fence = "`" * (max(map(len, re.findall("`+", plain)), default=0) + 1)
    space = " " if "`" in plain else ""
    return f"{fence}{space}{plain}{space}{fence}"


def example_rows(manifest: Mapping[str, Any]) -> list[Any]:
    """Return an example row, for images a file name (see `example_image`); nothing for an unknown form of rows."""
    rows = manifest["rows"]
    kind = None if rows is None else rows["kind"]
    if kind == "table":
        numbers = {one["name"]: "2024-12-31" if one["is_date"] else one["median"] for one in rows["numbers"]}
        return [numbers | {one["name"]: next(iter(one["levels"]), None) for one in rows["categories"]}]
    if kind == "text":
        return ["An example of a text."]
    if kind == "image":
        return [EXAMPLE_IMAGE]
    return [_zeros(rows["shape"], rows["dtype"])] if kind == "array" else []


def example_image(manifest: Mapping[str, Any]) -> bytes | None:
    """Return a grey PNG of an image model's input size, or None."""
    rows = manifest["rows"]
    if rows is None or rows["kind"] != "image":
        return None
    width, height = int(rows["width"]), int(rows["height"])
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)  # 8 bits, grey, no interlacing
    pixels = zlib.compress((b"\0" + b"\x80" * width) * height)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", pixels) + _chunk(b"IEND", b"")


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def _zeros(shape: list[int], dtype: str) -> Any:
    if shape:
        return [_zeros(shape[1:], dtype) for _ in range(max(1, shape[0]))]
    return 0.0 if dtype.startswith("float") else 0
