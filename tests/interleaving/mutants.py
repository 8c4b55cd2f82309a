"""The contract without one of its clauses, for each of them.

A mutant is the reference's source with one clause taken out, and nothing else changed. The
search must catch it: what it does not catch is not needed, or the search is too weak.
`python -m tests.interleaving.mutants` prints the table: clause, what is taken out, the
invariant that breaks, and how many schedules it took.
"""

import re
import sys
import types
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from typing_extensions import override

from tests.interleaving.invariants import Broken
from tests.interleaving.on_reference import play_reference
from warmer.store import reference
from warmer.store.script import Script

SOURCE = Path(reference.__file__).read_text()
TAG = re.compile(r"#.*?\[([a-z_.]+)\]$", re.MULTILINE)
SCRIPT_TAG = re.compile(r"^.*-- \[([a-z_.]+)\]$", re.MULTILINE)
MAX_SEEDS = 20_000
"""Bound of a search. After a change of the scenarios, seeds mean other schedules."""


@dataclass(frozen=True, slots=True)
class Caught:
    """Which schedule caught a mutant, and how."""

    seed: int
    invariant: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """One clause, the text that is taken out, and what stands in its place.

    `breaks`: the invariants of which one is the first to be seen broken. `script`: what
    stands in the place of the clause's line in its script. `near`: where the search begins;
    0 unless only one schedule in thousands needs the clause.
    """

    clause: str
    breaks: str
    text: str
    instead: str = ""
    script: str = ""
    near: int = 0

    @override
    def __str__(self) -> str:
        """Return the clause, and which of its mutants if there are two."""
        return f"{self.clause}:{self.instead}" if self.instead else self.clause

    def module(self) -> types.ModuleType:
        """Return the reference without the clause."""
        if SOURCE.count(self.text) != 1:
            raise LookupError(f"{self.clause}: {self.text!r} is not there once")
        module = types.ModuleType(f"without {self.clause}")
        code = compile(SOURCE.replace(self.text, self.instead), self.clause, "exec")
        exec(code, module.__dict__)  # noqa: S102 - our own source
        return module

    def mutated_script(self) -> Script:
        """Return the script without the clause."""
        name = self.clause.partition(".")[0]
        text = script_text(name)
        line = re.compile(rf"^.*-- \[{re.escape(self.clause)}\]$", re.MULTILINE)
        if len(line.findall(text)) != 1:
            raise LookupError(f"{self.clause} is not one line of {name}.lua")
        return Script(name, line.sub(lambda _: self.script, text))

    def caught(self) -> Caught:
        """Return the first schedule that catches it."""
        module = self.module()
        for seed in range(self.near, self.near + MAX_SEEDS):
            try:
                play_reference(seed, module)
            except Broken as broken:
                return Caught(seed, broken.invariant)
        raise LookupError(f"{MAX_SEEDS} schedules do not need {self}")


def clauses() -> set[str]:
    """Return the name of every clause in the reference."""
    return set(TAG.findall(SOURCE))


def script_clauses() -> set[str]:
    """Return the name of every clause in the scripts."""
    return {
        clause
        for script in ("claim", "renew", "publish", "release", "invalidate")
        for clause in SCRIPT_TAG.findall(script_text(script))
    }


def script_text(script: str) -> str:
    """Return the source of a script."""
    return (files("warmer.store") / "lua" / f"{script}.lua").read_text()


MUTANTS = (
    Mutant(
        "claim.raise", "I1", "sorted(claim.wanted.items()):  # [claim.raise]", "():"
    ),
    Mutant(
        "claim.settle", "I1", 'guard["purged_at"] = str(now)  # [claim.settle]', "pass"
    ),
    Mutant("claim.seen", "I7", "entry.fence == claim.seen_fence:", "False:"),
    Mutant("claim.fresh", "I7", "and unseen.fresh_until > now  #", "#"),
    Mutant("claim.reached", "I7", "and _reached(unseen, claim)  #", "#"),
    Mutant("claim.heal", "I7", "if lease and lease.expires_at == NEVER:", "if False:"),
    Mutant("claim.held", "I5", "if lease and lease.value != claim.token:", "if False:"),
    Mutant(
        "claim.again", "I3", 'lease and guard.get("owner") == claim.token:', "False:"
    ),
    Mutant("claim.cooling", "I8", "if retry_at > now:", "if False:"),
    Mutant(
        "claim.fence", "I5", "max(last + 1, now * 1000)", "now * 1000", "fence = now_us"
    ),
    Mutant("claim.fence", "I5", "max(last + 1, now * 1000)", "last + 1"),
    Mutant(
        "renew.mine",
        "I5",
        "held is None or held.value != lease.token:",
        "held is None:",
    ),
    Mutant(
        "publish.already",
        "I3",
        'entry and guard.get("publisher") == lease.token:',
        "False:",
    ),
    Mutant(
        "publish.fence",
        "I5",
        'int(guard.get("fence", 0)) != lease.fence  #',
        "False  #",
    ),
    Mutant("publish.owner", "I5", 'or guard.get("owner") != lease.token  #', "#"),
    Mutant("publish.lease", "I5", "or (held and held.value != lease.token)  #", "#"),
    Mutant("publish.once", "I3 I5", 'guard["owner"] = ""  # [publish.once]', ""),
    Mutant("publish.frees", "I9", "self.leases.pop(key, None)  # [publish.frees]", ""),
    Mutant("publish.lag", "I8", "if load.lagging:", "if False:"),
    Mutant("publish.forgives", "I8", 'guard.pop("failures", None)  #', "#"),
    Mutant(
        "publish.settle", "I1", "fresh_until = min(fresh_until, settled_at)", "pass"
    ),
    Mutant(
        "publish.kept",
        "I9",
        "elif load.spans and publication",
        "elif False and publication",
    ),
    Mutant(
        "publish.kept_window",
        "I4",
        "fresh_until = claimed_at  #",
        "fresh_until = now  #",
    ),
    Mutant(
        "publish.floor",
        "I1",
        "if order is Order.OLDER:  # [publish.floor]",
        "if False:",
    ),
    Mutant(
        "publish.raised",
        "I1",
        "if int(guard[RAISED + scope]) > claim_generation:",
        "if False:",
    ),
    Mutant(
        "publish.blind", "I1", 'if int(guard["blind"]) > claim_generation:', "if False:"
    ),
    Mutant(
        "publish.kept_regress", "I2", "not regresses  # [publish.kept_regress]", "True"
    ),
    Mutant("publish.kept_floor", "I4", "and not below_seen  #", "#"),
    Mutant(
        "publish.kept_hard",
        "I4",
        'and int(guard.get("hard", 0)) <= claim_generation',
        "",
    ),
    Mutant("publish.regress", "I2", "current = current and not regresses", ""),
    Mutant("release.ends", "I5", 'guard["owner"] = ""  # [release.ends]', ""),
    Mutant(
        "release.mine",
        "I5",
        "if held.value != lease.token:  # [release.mine]",
        "if False:",
        'redis.call("DEL", lease)',
    ),
    Mutant(
        "invalidate.fence",
        "I7",
        'max(int(guard.get("fence", 0)), now * 1000 - 1)',
        'int(guard.get("fence", 0))',
        near=42_200,
    ),
    Mutant(
        "invalidate.older_than_entry",
        "I6",
        "spared = in_entry is Order.NEWER",
        "spared = False",
    ),
    Mutant(
        "invalidate.remember",
        "I1",
        "(spared and above is Order.EQUAL)",
        "spared",
        "if spared then noted_before = true end",
        near=3_900,
    ),
    Mutant(
        "invalidate.older_than_floor", "I6", "above is Order.NEWER  # [", "False  # ["
    ),
    Mutant("invalidate.entry_below", "I1", "and in_entry is not Order.OLDER  #", "#"),
    Mutant(
        "invalidate.hard_always",
        "I1 I4",
        "noted and invalidation.mode is PurgeMode.SOFT",
        "noted",
    ),
    Mutant("invalidate.generation", "I9", 'guard["generation"] = str(generation)', ""),
    Mutant("invalidate.raise", "I1", "if above is not Order.NEWER:", "if True:"),
    Mutant("invalidate.blind", "I1", 'guard["blind"] = str(generation)', "pass"),
    Mutant(
        "invalidate.purged_at", "I1", 'guard["purged_at"] = str(now)  # [inv', "# [inv"
    ),
    Mutant("invalidate.hard", "I4", 'guard["hard"] = str(generation)', "pass"),
    Mutant(
        "invalidate.stale", "I1", "entry.fresh_until = min(entry.fresh_until, now)", ""
    ),
    Mutant(
        "invalidate.stale_window",
        "I4",
        "entry.stale_until, now + invalidation.stale_ms",
        "entry.stale_until, entry.stale_until",
    ),
    Mutant(
        "invalidate.error_window",
        "I4",
        "entry.error_until, now + invalidation.error_ms",
        "entry.error_until, entry.error_until",
    ),
)

NOTES_REPEATED_EVENTS = Mutant(
    "invalidate.remember", "I9", "(spared and above is Order.EQUAL)", "False"
)
"""Costs a load and breaks nothing: shown by a test of its own."""


def table() -> None:
    """Print the table."""
    for mutant in MUTANTS:
        caught = mutant.caught()
        taken = f"{mutant.text} -> {mutant.instead or 'nothing'}"
        sys.stdout.write(
            f"{mutant.clause:28} {caught.invariant:3} {caught.seed + 1:6}  {taken}\n"
        )


if __name__ == "__main__":
    table()
