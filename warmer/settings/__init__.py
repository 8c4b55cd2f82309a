"""What can be set, how it is written, and where it is read from. Imports only errors."""

from warmer.settings.parts import (
    Cache,
    Client,
    Control,
    Dataset,
    Hook,
    LoaderVersion,
    Origin,
    Sentry,
    Serve,
    Server,
    Settings,
    Source,
    SourceTable,
    Worker,
)
from warmer.settings.reading import Reading, load_settings, read_settings
from warmer.settings.units import Spread, milliseconds, parse_duration

__all__ = [
    "Cache",
    "Client",
    "Control",
    "Dataset",
    "Hook",
    "LoaderVersion",
    "Origin",
    "Reading",
    "Sentry",
    "Serve",
    "Server",
    "Settings",
    "Source",
    "SourceTable",
    "Spread",
    "Worker",
    "load_settings",
    "milliseconds",
    "parse_duration",
    "read_settings",
]
