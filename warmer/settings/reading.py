"""Settings, read from four places, with every mistake named at once.

Flags go before environment variables (`WARMER_CACHE__URL`), those before systemd
credentials (`$CREDENTIALS_DIRECTORY/warmer_cache__url`), those before the TOML file.

Holds: a file that is missing, a name that nobody reads and a value out of range are
errors; each names where it stands, its TOML path, and what is allowed. No value and no
secret is repeated in a message.
Does not hold: that names in templates agree with each other. `warmer.model.dataset_config`
asks that.

Not pydantic-settings: it passes over a missing file, a mistyped variable and a credential
without the prefix in silence, cannot say where a value was read, and costs every command
the time of its import.
"""

import contextlib
import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

from pydantic import BaseModel, SecretStr, ValidationError

from warmer.errors import ConfigError, Problem
from warmer.settings.parts import (
    Dataset,
    Places,
    Settings,
    Source,
    dotted,
    nearest,
)

PREFIX = "WARMER_"
CONFIG_VARIABLE = "WARMER_CONFIG"
CREDENTIALS_VARIABLE = "CREDENTIALS_DIRECTORY"
DEFAULT_FILES = ("warmer.toml", "config/warmer.toml", "/etc/warmer/warmer.toml")

# Kubernetes gives each pod WARMER_PORT, WARMER_SERVICE_HOST … for a service `warmer`.
_SERVICE_LINK = re.compile(r"WARMER(_[A-Z0-9]+)*?_(SERVICE_(HOST|PORT)|PORT)(_.*)?")
_REFERENCE = re.compile(r"((?:[!-~]+ )?)(env|credential):([A-Za-z0-9_.-]+)")
_SECRET_HEADER = re.compile(r"auth|cookie|token|secret|key|password", re.IGNORECASE)
_NAMED = {"origins", "datasets", "sources", "hooks"}
_LARGEST_CREDENTIAL = 64 * 1024

Tree = dict[str, Any]
TomlPath = tuple[str, ...]


@dataclass
class Reading:
    """What was read, and every problem found so far.

    `settings` is None while there are problems; `datasets` and `sources` hold those that are
    right by themselves, so that what must agree between them can be asked all the same.
    """

    tree: Tree = field(default_factory=dict)
    places: Places = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    settings: Settings | None = None
    datasets: dict[str, Dataset] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)

    def problem(self, path: TomlPath, message: str) -> None:
        """Note that the value at `path` is wrong."""
        self.problems.append(Problem(nearest(self.places, path), dotted(path), message))

    def put(self, path: TomlPath, value: object, place: str) -> None:
        """Set one value; what was there before stands back."""
        table = self.tree
        for name in path[:-1]:
            inner = table.get(name)
            if not isinstance(inner, dict):
                inner = table[name] = {}
            table = inner
        table[path[-1]] = value
        self.places[path] = place


def load_settings(
    path: str | Path | None = None, *, flags: Mapping[str, object] | None = None
) -> Settings:
    """Return the settings; raises ConfigError with every problem.

    Without `path`: the file `$WARMER_CONFIG` names, or the first that is there of
    `warmer.toml`, `config/warmer.toml` and `/etc/warmer/warmer.toml`. `flags` are TOML
    paths such as `worker.concurrency` with their values.
    """
    reading = read_settings(path, flags=flags)
    if reading.settings is None:
        raise ConfigError(*reading.problems)
    return reading.settings


def read_settings(
    path: str | Path | None = None,
    *,
    flags: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Reading:
    """Return what was read with every problem; `environment` defaults to the process's own."""
    env = os.environ if environment is None else environment  # noqa: TID251 - here only
    reading = Reading()
    file = _file(path, env)
    credentials = _credentials(reading, env)
    reading.places[()] = "no file" if file is None else str(file)
    if file is not None and not _read_file(reading, file):
        return reading  # what else is missing would only hide that
    used = _resolve_headers(reading, env, credentials)
    used |= _resolve_secrets(reading, env, credentials)
    _read_credentials(reading, credentials, used)
    _read_environment(reading, env, used)
    for name, value in (flags or {}).items():
        reading.put(tuple(name.split(".")), value, f"flag {name}")
    _validate(reading)
    return reading


# --- the file -------------------------------------------------------------------------


def _file(path: str | Path | None, env: Mapping[str, str]) -> Path | None:
    named = path or env.get(CONFIG_VARIABLE)
    if named:
        return Path(named)
    return next((Path(name) for name in DEFAULT_FILES if Path(name).is_file()), None)


def _read_file(reading: Reading, file: Path) -> bool:
    """Take the file's tables and the places of its keys; return whether it could be read."""
    place = str(file)
    try:
        text = file.read_text(encoding="utf-8")
        reading.tree = tomllib.loads(text)
    except OSError as exc:
        reading.problem((), f"cannot be read: {exc.strerror}")
    except UnicodeDecodeError:
        reading.problem((), "is not UTF-8 text")
    except tomllib.TOMLDecodeError as exc:
        # Its message ends "(at line 3, column 5)", and may quote a character, not a value.
        line = re.search(r"at line (\d+)", str(exc))
        reading.places[()] = f"{place}:{line[1]}" if line else place
        reading.problem((), f"is not TOML: {exc}")
    else:
        for path, number in _lines(text):
            reading.places.setdefault(path, f"{place}:{number}")
        return True
    return False


_HEADER = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(#.*)?")
_ASSIGNED = re.compile(
    r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*="""
)
_WORD = re.compile(r"""[A-Za-z0-9_-]+|"([^"]*)"|'([^']*)'""")


def _lines(text: str) -> Iterator[tuple[TomlPath, int]]:
    """Yield where tables and keys begin, as far as single lines show it."""
    table: TomlPath = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.fullmatch(line):
            table = _words(header[1])
            yield table, number
        elif assigned := _ASSIGNED.match(line):
            yield table + _words(assigned[1]), number


def _words(dotted: str) -> TomlPath:
    return tuple(
        next((text for text in word.groups() if text is not None), word[0])
        for word in _WORD.finditer(dotted)
    )


# --- credentials and environment ------------------------------------------------------


def _credentials(reading: Reading, env: Mapping[str, str]) -> dict[str, str]:
    """Return the credential files by name, without the newline that editors leave."""
    folder = env.get(CREDENTIALS_VARIABLE)
    if not folder:
        return {}
    found = {}
    try:
        for file in sorted(Path(folder).iterdir()):
            if file.is_file() and file.stat().st_size <= _LARGEST_CREDENTIAL:
                found[file.name] = file.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError):
        reading.problems.append(
            Problem(f"${CREDENTIALS_VARIABLE}", "", "a credential cannot be read")
        )
    return found


def _read_credentials(
    reading: Reading, credentials: Mapping[str, str], used: set[str]
) -> None:
    for name, value in credentials.items():
        if name in used or not name.lower().startswith(PREFIX.lower()):
            continue
        _read_variable(reading, name, value, place=f"credential {name}")


def _read_environment(reading: Reading, env: Mapping[str, str], used: set[str]) -> None:
    for name, value in sorted(env.items()):
        if not name.startswith(PREFIX) or name in used | {CONFIG_VARIABLE}:
            continue
        if "__" in name or not _SERVICE_LINK.fullmatch(name):
            _read_variable(reading, name, value, place=name)


def _read_variable(reading: Reading, name: str, text: str, *, place: str) -> None:
    words = name[len(PREFIX) :].lower().split("__")
    path = _spelled(reading.tree, words)
    kind = _kind_at(path)
    if not _is_setting(kind) or not _is_declared(reading.tree, path):
        guess = _closest(name, _variables(reading.tree, like=name))
        reading.problems.append(Problem(place, "", f"nobody reads this name{guess}"))
        return
    reading.put(path, _value(text, kind), place)


def _spelled(tree: Tree, words: list[str]) -> TomlPath:
    """Return the path with names as the file spells them: `SHOP_DB` is `shop-db` there."""
    path: list[str] = []
    at = tree
    for word in words:
        same = (name for name in at if _as_variable(name) == word.upper())
        path.append(word if word in at else next(same, word))
        at = _table(at.get(path[-1]))
    return tuple(path)


def _table(value: object) -> Tree:
    """Return `value` if it is a table, else an empty one: mistakes are named later."""
    return value if isinstance(value, dict) else {}


def _is_setting(kind: object) -> bool:
    return kind is not None and _model_in(kind) is None


def _is_declared(tree: Tree, path: TomlPath) -> bool:
    """What has a name is declared in the file; a mistyped name must not make one."""
    return path[0] not in _NAMED or path[1] in _table(tree.get(path[0]))


def _as_variable(name: str) -> str:
    return re.sub(r"[^A-Z0-9]", "_", name.upper())


def _kind_at(path: TomlPath) -> object:
    """Return the type of the setting or table at `path`, None where there is none."""
    kind: object = Settings
    for name in path:
        model = _model_in(kind)
        if model is not None:
            field = model.model_fields.get(name)
            kind = field.annotation if field else None
        else:
            kind = _each_in(kind)
    return kind


def _each_in(kind: object) -> object:
    """Return the type of the values of a table of named ones, None for other types."""
    return get_args(kind)[1] if get_origin(kind) is dict else None


def _model_in(kind: object) -> type[BaseModel] | None:
    """Return the table that a type is, or may be: `SourceStream | None`."""
    for each in (kind, *(get_args(kind) if isinstance(kind, UnionType) else ())):
        if isinstance(each, type) and issubclass(each, BaseModel):
            return each
    return None


def _value(text: str, kind: object) -> object:
    """Return a variable's value: TOML where a list or table is due, else the text itself."""
    if SecretStr in (kind, *get_args(kind)) or not text.lstrip().startswith(("[", "{")):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _variables(tree: Tree, *, like: str) -> list[str]:
    """Return the names of all variables that would be read, as `like` spells its own."""
    names = [
        PREFIX + "__".join(_as_variable(word) for word in path)
        for path in _paths(Settings, tree, ())
    ]
    return names if like.isupper() else [name.lower() for name in names]


def _paths(model: type[BaseModel], tree: object, at: TomlPath) -> Iterator[TomlPath]:
    table = _table(tree)
    for name, info in model.model_fields.items():
        kind = info.annotation
        inner = _model_in(kind)
        if inner is not None:
            yield from _paths(inner, table.get(name), (*at, name))
            continue
        each = _model_in(_each_in(kind))
        if each is None:
            yield (*at, name)
            continue
        for key, value in _table(table.get(name)).items():
            yield from _paths(each, value, (*at, name, key))


def _closest(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


# --- secrets in headers ---------------------------------------------------------------


def _resolve_headers(
    reading: Reading, env: Mapping[str, str], credentials: Mapping[str, str]
) -> set[str]:
    """Replace `env:NAME` and `credential:NAME`; return the credentials that were used."""
    used: set[str] = set()
    for origin, table in _table(reading.tree.get("origins")).items():
        headers = _table(_table(table).get("headers"))
        for header, value in headers.items():
            path = ("origins", origin, "headers", header)
            found = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
            if found is not None:
                scheme, kind, name = found.groups()
                secret = (env if kind == "env" else credentials).get(name)
                if secret is None:
                    reading.problem(path, f"{kind}:{name} is not there")
                    continue
                used.add(name)
                headers[header] = scheme + secret
            elif _SECRET_HEADER.search(header):
                reading.problem(
                    path,
                    "a secret does not stand in the file; write env:NAME or "
                    "credential:NAME",
                )
    return used


def _resolve_secrets(
    reading: Reading, env: Mapping[str, str], credentials: Mapping[str, str]
) -> set[str]:
    """Replace the references in `secrets` of sources and hooks; return those used."""
    used: set[str] = set()
    for kind in ("sources", "hooks"):
        for name, table in _table(reading.tree.get(kind)).items():
            secrets = _table(table).get("secrets")
            if not isinstance(secrets, list):
                continue
            for index, reference in enumerate(secrets):
                path = (kind, name, "secrets")
                found = _REFERENCE.fullmatch(str(reference))
                if found is None or found[1]:
                    reading.problem(
                        path,
                        "a secret does not stand in the file; write env:NAME or "
                        "credential:NAME",
                    )
                    continue
                secret = (env if found[2] == "env" else credentials).get(found[3])
                if secret is None:
                    reading.problem(path, f"{found[2]}:{found[3]} is not there")
                    continue
                used.add(found[3])
                secrets[index] = secret
    return used


# --- checking -------------------------------------------------------------------------


def _validate(reading: Reading) -> None:
    try:
        settings = Settings.model_validate(reading.tree)
    except ValidationError as exc:
        reading.problems.extend(_problems(reading, exc))
    else:
        settings._places.update(reading.places)  # noqa: SLF001 - set once, here
        reading.datasets = dict(settings.datasets)
        reading.sources = dict(settings.sources)
        reading.settings = None if reading.problems else settings
        return
    for name, table in _table(reading.tree.get("datasets")).items():
        with contextlib.suppress(ValidationError):
            reading.datasets[name] = Dataset.model_validate(table)
    for name, table in _table(reading.tree.get("sources")).items():
        with contextlib.suppress(ValidationError):
            reading.sources[name] = Source.model_validate(table)


def _problems(reading: Reading, error: ValidationError) -> Iterator[Problem]:
    for details in error.errors(
        include_url=False, include_input=False, include_context=False
    ):
        path = tuple(str(word) for word in details["loc"] if word != "[key]")
        yield Problem(
            nearest(reading.places, path),
            dotted(path),
            _message(path, details["type"], details["msg"])
            + _meant(reading.tree, path, details["type"], details["msg"]),
        )


def _meant(tree: Tree, path: TomlPath, kind: str, message: str) -> str:
    """Return which of a few allowed words was probably meant."""
    if kind != "literal_error":
        return ""
    value: object = tree
    for name in path:
        value = _table(value).get(name)
    return _closest(str(value), re.findall(r"'([^']+)'", message))


def _message(path: TomlPath, kind: str, message: str) -> str:
    match kind:
        case "extra_forbidden":
            table = _model_in(_kind_at(path[:-1]))
            near = _closest(path[-1], list(table.model_fields) if table else [])
            return f"there is no such setting{near}"
        case "missing" if path == ("cache",):
            return (
                "is required; settings are read from --config, else $WARMER_CONFIG, else "
                + ", ".join(DEFAULT_FILES)
            )
        case "missing":
            return "is required"
        case _:
            said = message.removeprefix("Value error, ")
            return said.replace("Input should be ", "must be ", 1)
