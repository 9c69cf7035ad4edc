"""Reading and caching conversations in a phase server: copy this file into yours. It needs the package mcp.

- `Conversation` reads the conversation that a call names, as an MCP client of Statehold.
- `Histories` caches histories: pinned ones by address and revision, live ones with revalidation.
- `Cache` is an LRU cache with a TTL, a limit in bytes and one computation per miss, for histories and anything else.

Use an object from one event loop only. Durable data of a phase server: local_store.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.types import TextResourceContents

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Flight(Generic[V]):
    """A computation in flight."""

    task: asyncio.Task[V]
    waiters = 0


class Cache(Generic[K, V]):
    """An LRU cache with a TTL, a limit in bytes and one computation per miss."""

    def __init__(self, *, bytes_max: int, ttl: float, size_of: Callable[[V], int],
                 clock: Callable[[], float] = time.monotonic) -> None:
        self.hits = self.misses = self.joined = self.bytes = 0
        self._bytes_max, self._ttl, self._size_of, self._clock = bytes_max, ttl, size_of, clock
        self._entries: OrderedDict[K, tuple[V, int, float]] = OrderedDict()  # Value, size, end of the TTL.
        self._flights: dict[K, Flight[V]] = {}

    async def get_or_compute(self, key: K, compute: Callable[[], Awaitable[V]]) -> V:
        """The cached value, or the result of `compute`, which runs once for all concurrent callers of the key.

        An error is not cached. It is raised for the caller whose `compute` failed; the other callers try once more,
        together. A cancelled caller leaves the computation running for the others; the last one to leave cancels it.
        """
        for is_second in (False, True):
            if (found := self.get(key)) is not None:
                self.hits += 1
                return found
            if flight := self._flights.get(key):
                self.joined += 1
                is_own = False
            else:
                self.misses += 1
                is_own = True
                flight = self._flights[key] = Flight()
                flight.task = asyncio.ensure_future(self._fill(key, flight, compute))
            flight.waiters += 1
            try:
                return await asyncio.shield(flight.task)
            except Exception:
                if is_own or is_second:
                    raise
            finally:
                flight.waiters -= 1
                if not flight.waiters and not flight.task.done():
                    flight.task.cancel()
                    self._land(key, flight)  # The next caller starts a computation instead of joining a cancelled one.
        raise AssertionError("the second round returns or raises")

    def get(self, key: K) -> V | None:
        """The cached value, unless its TTL has passed. Not counted."""
        value, _, end = self._entries.get(key, (None, 0, 0))
        if value is not None and self._clock() >= end:
            self._remove(key)
            return None
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def put(self, key: K, value: V, *, keep_ttl: bool = False) -> None:
        """Caches a value and evicts the least recently used ones. `keep_ttl` replaces a value and keeps its TTL."""
        end, size = self._clock() + self._ttl, self._size_of(value)
        if keep_ttl:
            if key not in self._entries:
                return
            end = self._entries[key][2]
        self._remove(key)
        if size <= self._bytes_max:
            self._entries[key] = value, size, end
            self.bytes += size
        while self.bytes > self._bytes_max:
            self._remove(next(iter(self._entries)))

    def drop(self, key: K) -> None:
        """Removes a value. A computation in flight still answers its waiters; its result is not cached."""
        self._remove(key)
        self._flights.pop(key, None)

    async def _fill(self, key: K, flight: Flight[V], compute: Callable[[], Awaitable[V]]) -> V:
        try:
            value = await compute()
            if self._flights.get(key) is flight:
                self.put(key, value)
            return value
        finally:
            self._land(key, flight)

    def _land(self, key: K, flight: Flight[V]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]

    def _remove(self, key: K) -> None:
        self.bytes -= self._entries.pop(key, (None, 0, 0))[1]


@dataclass(frozen=True)
class Message:
    """A message. `name` is the phase that gave it."""

    role: str
    content: Any
    name: str | None = None
    seq: int = 0  # Its place in the session. `conversation://current-history` has none.
    created_at: str | None = None
    request_id: str | None = None

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else json.dumps(self.content)


@dataclass(frozen=True)
class History:
    """The messages of one revision. Calls share it: change nothing in it."""

    rev: int | None
    messages: tuple[Message, ...]
    size: int  # Bytes of the JSON text. The objects take a few times as much.
    turn: str | None = None  # The turn whose phases' answers are among the messages.
    earlier: str | None = None  # The address of the messages before these, if one document does not hold them all.
    is_reset: bool = False

    @classmethod
    def of_json(cls, text: str, revision: int | None = None, turn: str | None = None) -> History:
        """From `{rev, messages}`, or from the bare array of `conversation://current-history`."""
        found = json.loads(text)
        if isinstance(found, list):
            found = {"rev": revision, "messages": found}
        known = Message.__dataclass_fields__
        messages = tuple(Message(**{key: one[key] for key in one if key in known}) for one in found["messages"])
        return cls(found["rev"], messages, len(text.encode()), turn, found.get("earlier"), found.get("reset", False))

    @classmethod
    def of_meta(cls, meta: Mapping[str, Any] | None) -> History:
        """From a call with `history = "inline"`."""
        return cls.of_json(json.dumps(dict(meta or {})["statehold/conversation_history"]))

    def with_tail(self, tail: History) -> History:
        """This history continued by the answer to `?after=`. After a rewind or a long gap the answer replaces it."""
        if tail.is_reset or tail.earlier:
            return tail
        # The answer of a phase is shown when the next phase starts, so a new message may belong before a known one.
        messages = {one.seq: one for one in (*self.messages, *tail.messages)}
        ordered = tuple(messages[seq] for seq in sorted(messages))
        return replace(self, rev=tail.rev, messages=ordered, size=self.size + tail.size)

    @property
    def phase_answers(self) -> dict[str, str]:
        """The newest answer of each earlier phase of this turn, which began with its last message of a user."""
        asked = [place for place, one in enumerate(self.messages) if one.role == "user"]
        own = [place for place in asked if self.turn and self.messages[place].request_id == self.turn]
        begin = (own or asked or [0])[-1]
        return {one.name: one.text for one in self.messages[begin:] if one.role == "assistant" and one.name}


class ReadError(Exception):
    """Statehold could not be reached, or refused the read."""


class Source(Protocol):
    """Reads resources with one token, and reports their changes."""

    @property
    def url(self) -> str:
        """The MCP endpoint of Statehold."""

    @property
    def request(self) -> str:
        """The request of the phase, which the token belongs to."""

    async def read(self, uri: str) -> tuple[str, int | None]:
        """The text of a resource, and its revision."""

    def listen(self, uri: str) -> contextlib.AbstractAsyncContextManager[AsyncIterator[Any]]:
        """A subscription. It is open once the context is entered, and yields one item for each reported change."""


@dataclass
class LiveAddress:
    """The reads of one live address that are under way, and its subscriptions."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    started: int = 0
    number: int = 0  # Of the last read that succeeded, in the order of their starts.
    history: History | None = None
    subscriptions: int = 0
    changes: int = 0
    changes_seen: int = -1  # `changes` when the last read that succeeded started.


class Histories:
    """The histories that a phase server has read. One object serves all calls and all sessions.

    - **Pinned** (`?rev=17`): the messages never change, so the copy is served until its TTL ends. The TTL bounds how
      long this process keeps text that was erased at Statehold.
    - **Live** (no `rev`): a copy is never served by its address alone. Each read asks for the messages `?after=` the
      revision of the copy, so the result has every commit that was acknowledged before the read began. Concurrent
      readers share a request that starts after they asked. When the TTL of the copy ends, it is read again in whole.
      Inside `subscribed`, reads are served from memory until Statehold reports a change.
    - `conversation://current-history` is the same address in every session. It is read each time and never cached.

    The keys contain the address of Statehold, but not the token, which differs from call to call. So `Conversation`
    refuses an address of another session before it looks into the cache. An address without `turn` shows each token
    the answers of its own turn, so its key contains the request of the call, too.
    """

    def __init__(self, *, bytes_max: int = 64 << 20, ttl: float = 600,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self.cache: Cache[HistoryKey, History] = Cache(
            bytes_max=bytes_max, ttl=ttl, size_of=lambda history: history.size, clock=clock)
        self.tails = 0  # Live reads that fetched the new messages only.
        self.tls = httpx2.create_ssl_context()
        self._live: weakref.WeakValueDictionary[HistoryKey, LiveAddress] = weakref.WeakValueDictionary()

    async def read(self, source: Source, uri: str) -> History:
        query = query_of(uri)

        async def fetch(uri: str = uri) -> History:
            history = History.of_json(*await source.read(uri), query.get("turn"))
            if "rev" in query and history.rev != int(query["rev"]):
                raise ValueError(f"{uri} was answered with revision {history.rev}")
            return history

        if session_of(uri) is None:
            return await fetch()
        if "rev" in query:
            return await self.cache.get_or_compute(key_of(source, uri), fetch)
        return await self._read_live(key_of(source, uri), fetch)

    async def _read_live(self, key: HistoryKey, fetch: Callable[[str], Awaitable[History]]) -> History:
        live = self._live.setdefault(key, LiveAddress())
        started = live.started
        async with live.lock:
            is_unchanged = live.subscriptions > 0 and live.changes_seen == live.changes
            if live.history and (is_unchanged or live.number > started):
                self.cache.hits += is_unchanged
                self.cache.joined += not is_unchanged
                return live.history
            live.started += 1
            number, changes, copy = live.started, live.changes, self.cache.get(key)
            if copy:
                self.tails += 1
                history = copy.with_tail(await fetch(with_query(key.uri, after=copy.rev)))
            else:
                self.cache.misses += 1
                history = await fetch(key.uri)
            self.cache.put(key, history, keep_ttl=copy is not None)
            live.history, live.number, live.changes_seen = history, number, changes
            return history

    @contextlib.asynccontextmanager
    async def subscribed(self, source: Source, uri: str) -> AsyncIterator[None]:
        """While this is open, live reads of the address are served from memory until Statehold reports a change."""
        live = self._live.setdefault(key_of(source, uri), LiveAddress())

        async def follow(changes: AsyncIterator[Any]) -> None:
            async for _ in changes:
                live.changes += 1

        def end(_: Any) -> None:  # Also when the stream breaks: then each read asks again.
            live.subscriptions -= 1

        async with source.listen(uri.split("?")[0]) as changes:
            live.subscriptions += 1
            live.changes += 1  # A read that began before the subscription may have missed a change.
            following = asyncio.ensure_future(follow(changes))
            following.add_done_callback(end)
            try:
                yield
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)


class HistoryKey(NamedTuple):
    url: str  # Of Statehold.
    uri: str
    revision: int | None
    request: str | None


def key_of(source: Source, uri: str) -> HistoryKey:
    query = query_of(uri)
    revision = int(query["rev"]) if "rev" in query else None
    return HistoryKey(source.url, uri, revision, None if "turn" in query else source.request)


def session_of(uri: str) -> str | None:
    """None for `conversation://current-history`: its session depends on the token."""
    parts = urlsplit(uri)
    return parts.netloc if parts.path else None


def query_of(uri: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(uri).query))


def with_query(uri: str, **values: Any) -> str:
    return f"{uri.split('?')[0]}?{urlencode(query_of(uri) | values)}"


@dataclass(frozen=True)
class Statehold:
    """A source over MCP, revision 2026-07-28: a read is one request, and leaves no connection behind."""

    url: str
    request: str
    token: str = field(repr=False)
    tls: Any = field(repr=False)

    async def read(self, uri: str) -> tuple[str, int | None]:
        try:
            async with self._client() as client:
                content = (await client.read_resource(uri)).contents[0]
        except (MCPError, httpx2.HTTPError) as error:
            # Else the package would pass the error of this read on as the answer to the call of the phase.
            raise ReadError(f"{uri} could not be read: {error}") from error
        assert isinstance(content, TextResourceContents)
        return content.text, (content.meta or {}).get("statehold/revision")

    @contextlib.asynccontextmanager
    async def listen(self, uri: str) -> AsyncIterator[AsyncIterator[Any]]:
        async with self._client() as client, client.listen(resource_subscriptions=[uri]) as changes:
            if uri not in (changes.honored.resource_subscriptions or ()):
                raise PermissionError(f"{uri} cannot be subscribed to")
            yield changes

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        headers = {"Authorization": f"Bearer {self.token}"}
        try:
            async with httpx2.AsyncClient(headers=headers, timeout=30, verify=self.tls) as http:
                transport = streamable_http_client(self.url, http_client=http)
                async with Client(transport, mode="2026-07-28", cache=None) as client:
                    yield client
        except BaseExceptionGroup as group:  # The task groups of the client wrap every error in one or more of these.
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
                error = error.exceptions[0]
            raise error from None


@dataclass(frozen=True)
class Conversation:
    """The conversation that one call of a phase may read.

    The call says which Statehold to ask, so let nothing but Statehold call the phase.
    """

    histories: Histories
    source: Source
    session: str

    @classmethod
    def of_call(cls, meta: Mapping[str, Any] | None, histories: Histories) -> Conversation:
        """From `ctx.request_context.meta`."""
        found = dict(meta or {})
        url, request, token = (found[f"statehold/{name}"] for name in ("mcp_url", "request", "read_token"))
        return cls(histories, Statehold(url, request, token, histories.tls), found["statehold/session"])

    async def history(self, uri: str) -> History:
        return await self.histories.read(self.source, self._checked(uri))

    def subscribed(self, uri: str) -> contextlib.AbstractAsyncContextManager[None]:
        return self.histories.subscribed(self.source, self._checked(uri))

    def _checked(self, uri: str) -> str:
        if session_of(uri) not in (None, self.session):
            raise PermissionError(f"{uri} is not the conversation of this call")
        return uri
