"""Datasets for tests: one ordinary one, changed where a test is about the change."""

from typing import Any

from warmer.model.dataset import (
    ColdStart,
    Dataset,
    EntityPattern,
    Jitter,
    LoaderVersion,
    RefreshOn,
    VersionMeans,
)
from warmer.model.event import PurgeMode
from warmer.model.key import KeyTemplate

SOURCE = "shop-db"


def product(**changes: Any) -> Dataset:
    """`product:v3:{id}`, whose loads report the row's version; fresh for a minute."""
    settings: dict[str, Any] = {
        "name": "product",
        "template": KeyTemplate("product:v{schema}:{id}"),
        "schema_version": 3,
        "live_schemas": (3,),
        "vary": {},
        "entities": (EntityPattern("shop-db/product:{id}"),),
        "origin": "shop",
        "path": "/products/{id}",
        "fresh_ms": 60_000,
        "stale_ms": 30_000,
        "error_ms": 600_000,
        "negative_ms": 5_000,
        "lease_ms": 5_000,
        "load_timeout_ms": 3_000,
        "settle_ms": 2_000,
        "reorder_ms": 600_000,
        "jitter": Jitter(),
        "early_refresh_beta": 0.0,
        "cold_start": ColdStart.WAIT,
        "empty": None,
        "purge": PurgeMode.SOFT,
        "refresh_on": RefreshOn.CACHED,
        "compress_above": None,
        "max_body_bytes": 1_048_576,
        "max_waiters": 1_000,
        "version": LoaderVersion(
            means=VersionMeans.ENTITY, source=SOURCE, entity="product:{id}"
        ),
    }
    return Dataset(**(settings | changes))
