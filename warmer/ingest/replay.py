"""Dead letters, once more: by the same way that they came, with today's configuration.

Holds: a letter leaves only after what it holds is in the event log or the due set. One
that fails again stays one letter: it keeps its first instant, and counts its attempts.
What is replayed applies, and its version counts as none: its source may have begun a new
order since, in which it would make newer events look old.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import orjson

from warmer.clock import Clock
from warmer.errors import BadEvent, BadKey
from warmer.ingest.bodies import messages_of
from warmer.ingest.dead_letters import MAX_PAYLOAD_BYTES, MAX_REASON_CHARS, Letter
from warmer.ingest.event_log import decode, record_of
from warmer.ingest.formats import Message
from warmer.ingest.intake import Intake, Report
from warmer.model.arrival import Arrival
from warmer.model.dataset import Datasets
from warmer.model.due import DueKey, Lane, key_of
from warmer.model.source import Order, Source, Sources
from warmer.model.version import decode_vector
from warmer.signals import Signals
from warmer.store.control import ControlServer
from warmer.store.dead_letters import Parked


class _Caught:
    """Takes the letters of what is not understood this time either."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    async def park(self, letters: Sequence[Letter]) -> int:
        """Note why."""
        self.reasons += [str(letter["reason"]) for letter in letters]
        return 0


class Replay:
    """Replays letters of one control server."""

    def __init__(
        self,
        control: ControlServer,
        *,
        sources: Sources,
        datasets: Datasets,
        clock: Clock,
        signals: Signals,
        report: Report,
    ) -> None:
        self._control = control
        self._sources = sources
        self._datasets = datasets
        self._clock = clock
        self._signals = signals
        self._report = report

    async def replay(self, letter: Parked) -> str | None:
        """Return None if it went well and the letter is gone, else why it stays."""
        try:
            await self._again(letter)
        except (BadEvent, BadKey) as exc:
            await self._failed_again(letter, str(exc))
            return str(exc)
        await self._control.dead.drop([letter.id])
        return None

    async def _again(self, letter: Parked) -> None:
        if int(letter.fields.get("size", "0")) > MAX_PAYLOAD_BYTES:
            raise BadEvent(f"only the first {MAX_PAYLOAD_BYTES} bytes of it were kept")
        match letter.fields.get("kind"):
            case "message":
                await self._messages(letter, [_message(letter)])
            case "body":
                source = self._source(letter)
                headers = _headers(letter)
                await self._messages(
                    letter,
                    messages_of(letter.payload, headers, format_name=source.format),
                )
            case "event":
                await self._event(letter)
            case "key":
                await self._key(letter)
            case _:
                raise BadEvent("kind: is none that can be replayed")

    async def _messages(self, letter: Parked, messages: Sequence[Message]) -> None:
        caught = _Caught()
        intake = Intake(
            log=self._control.events,
            letters=caught,
            clock=self._clock,
            signals=self._signals,
            report=self._report,
        )
        # An id of its own: a replay that is cut off and begun again is one.
        await intake.take(
            replace(self._source(letter), order=Order.NONE),
            messages,
            delivery_id=f"letter {letter.id}",
        )
        if caught.reasons:
            raise BadEvent(caught.reasons[0])

    async def _event(self, letter: Parked) -> None:
        event = decode(letter.payload, ordered=False)
        arrival = Arrival(event, identity=f"letter {letter.id}")
        source = self._sources.get(event.source) or Source(event.source, "plain")
        await self._control.events.accept([record_of(arrival)], source)

    async def _key(self, letter: Parked) -> None:
        key = key_of(letter.fields.get("member", ""), self._datasets)
        due = DueKey(
            key=key,
            wanted=decode_vector(letter.fields.get("wanted", "")),
            wanted_fence=_whole(letter, "wanted_fence"),
            event_id=letter.fields.get("event_id", ""),
        )
        await self._control.due.add(Lane.NOW, [due])

    async def _failed_again(self, letter: Parked, reason: str) -> None:
        """Write the letter anew, then drop the old one: cut off, both are there."""
        fields: dict[str, str | bytes] = {
            **letter.fields,
            "reason": reason[:MAX_REASON_CHARS],
            "first_at": letter.fields.get("first_at", letter.fields.get("at", "0")),
            "at": str(self._clock.now_ms()),
            "attempts": str(max(1, _whole(letter, "attempts")) + 1),
            "payload": letter.payload,
            "key": letter.key,
        }
        await self._control.dead.park([fields])
        await self._control.dead.drop([letter.id])

    def _source(self, letter: Parked) -> Source:
        name = letter.fields.get("source", "")
        source = self._sources.get(name)
        if source is None:
            raise BadEvent(f"source: {name[:80]!r} is not configured")
        return source


def _message(letter: Parked) -> Message:
    try:
        value = orjson.loads(letter.payload)
        key = orjson.loads(letter.key) if letter.key else None
    except orjson.JSONDecodeError as exc:
        raise BadEvent(f"payload: not JSON: {exc}") from None
    return Message(value, key, _headers(letter), raw=letter.payload)


def _headers(letter: Parked) -> Mapping[str, str]:
    try:
        headers = orjson.loads(letter.fields.get("headers", "{}"))
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(headers, dict):
        return {}
    return {str(name): str(value) for name, value in headers.items()}


def _whole(letter: Parked, name: str) -> int:
    text = letter.fields.get(name, "")
    return int(text) if text.isdecimal() and len(text) <= 20 else 0  # noqa: PLR2004 - digits of 2^64
