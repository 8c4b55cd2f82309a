"""The JSON schema of the file, for editors (`#:schema` in its first line) and for CI."""

import json

from warmer.settings.parts import Settings


def schema_text() -> str:
    """Return the schema as it is committed in `config/warmer.schema.json`."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "warmer.toml",
        **Settings.model_json_schema(),
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
