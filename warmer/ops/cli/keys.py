"""From the words of a command line to a dataset and a key."""

import difflib
import re
from collections.abc import Iterable

import click

from warmer.errors import BadKey
from warmer.model.dataset import Dataset, Datasets
from warmer.model.key import Key, decode_part


def dataset_named(datasets: Datasets, name: str) -> Dataset:
    """Return the dataset; a mistyped name gets a suggestion."""
    try:
        return datasets[name]
    except KeyError:
        raise click.UsageError(
            f"there is no dataset {name!r}{closest(name, datasets)}"
        ) from None


def closest(name: str, names: Iterable[str]) -> str:
    """Return `; did you mean …?`, or which names there are."""
    known = sorted(names)
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; there are: {', '.join(known)}" if known else ""


def parts_of(words: Iterable[str]) -> dict[str, str]:
    """Return `name=value` words as parts of a key."""
    parts: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{word!r} is not part=value")
        if name in parts:
            raise click.UsageError(f"part {name!r} is given twice")
        parts[name] = value
    return parts


def key_named(datasets: Datasets, words: tuple[str, ...]) -> tuple[Dataset, Key]:
    """Return what `KEY`, or `DATASET part=value…`, stands for."""
    first, *rest = words
    if rest or first in datasets or ":" not in first:
        dataset = dataset_named(datasets, first)
        return dataset, dataset.key(parts_of(rest))
    for dataset in datasets.values():
        key = _key_of(dataset, first)
        if key is not None:
            return dataset, key
    raise click.UsageError(
        f"{first!r} is not a key of any dataset; there are: "
        + ", ".join(dataset.template.text for dataset in datasets.values())
    )


def _key_of(dataset: Dataset, text: str) -> Key | None:
    """Return the key of this text, None if the dataset has none such."""
    pieces = re.split(r"\{([a-z][a-z0-9_]*)\}", dataset.template.text)
    pattern = "".join(
        f"(?P<{piece}>[^:]*)" if at % 2 else re.escape(piece)
        for at, piece in enumerate(pieces)
    )
    found = re.fullmatch(pattern, text)
    if found is None or not found["schema"].isdecimal():
        return None
    parts = {
        name: decode_part(value)
        for name, value in found.groupdict().items()
        if name != "schema"
    }
    try:
        key = dataset.key(parts, schema=int(found["schema"]))
    except BadKey:
        return None
    return key if key.text == text else None
