"""The same commands on the model and on a real server: replies and keyspaces that can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from redis.exceptions import ResponseError

from pipeline.store.scripts import source
from verification.model.commands import Status
from verification.model.keyspace import Keyspace, Refusal, Scores, Stream, read_id
from verification.model.server import Command, Link, Server, encoded
from verification.points import script_names

LOADER: Final = "local call = redis.call\n"

# On the real server time stands where it stood in the model, also in the ids that the server makes.
_TIMED: Final = """
local call = function(command, ...)
  if command == 'TIME' then return {'%(seconds)d', '%(rest)d'} end
  local args = {...}
  for n = 2, command == 'XADD' and 5 or 0 do
    if args[n] == '*' then
      local id = '%(milliseconds)d-0'
      if redis.call('EXISTS', args[1]) == 1 then
        local info = redis.call('XINFO', 'STREAM', args[1])
        for i = 1, #info, 2 do
          if info[i] == 'last-generated-id' then
            local ms, sub = string.match(info[i + 1], '^(%%d+)-(%%d+)$')
            if tonumber(ms) >= %(milliseconds)d then id = ms .. '-' .. string.format('%%.0f', sub + 1) end
          end
        end
      end
      args[n] = id
    end
  end
  return redis.call(command, unpack(args))
end
"""

UNORDERED: Final = frozenset({"HGETALL", "HKEYS", "SMEMBERS", "SCAN", "HSCAN", "ZSCAN"} | {"acquire", "books", "reap"})
"""Commands and scripts that answer parts of hashes, whose order is nobody's business."""

UNKNOWABLE: Final = frozenset({"INFO", "TIME", "MEMORY", "MEMORY USAGE", "XREAD"})


@dataclass(slots=True)
class Recorded:
    now: int
    link: Link
    command: Command
    reply: Any


@dataclass(slots=True)
class Recorder:
    """A wire to a model, on which a millisecond passes with each command."""

    server: Server = field(default_factory=Server)
    rows: list[Recorded] = field(default_factory=list)

    def open(self) -> Link:
        return self.server.open()

    def send(self, link: Link, commands: Sequence[Command]) -> list[Any]:
        assert link.run == self.server.run
        return [self.one(link, command) for command in commands]

    def one(self, link: Link, command: Command) -> Any:
        self.server.keyspace.now += 1_000
        reply = self.server.answer(link, command)
        self.rows.append(Recorded(self.server.keyspace.now, link, command, reply))
        return reply

    def name(self, command: Command) -> str:
        if command[0] == "EVALSHA":
            return script_names(self.server.run_id)[encoded(command[1]).decode()]
        return str(command[0])


def replay(client: Any, recorder: Recorder) -> None:
    """Sends all that was recorded to a real server, by as many connections. Every reply must be the model's."""
    connections: dict[Link, Any] = {}
    try:
        _replay(client, recorder, connections)
    finally:
        for connection in connections.values():
            client.connection_pool.release(connection)


def _replay(client: Any, recorder: Recorder, connections: dict[Link, Any]) -> None:
    texts = {source(name, recorder.server.run_id): name for name in script_names(recorder.server.run_id).values()}
    for number, row in enumerate(recorder.rows):
        name = recorder.name(row.command)
        command = list(row.command)
        if name in ("EVAL", "SCRIPT LOAD"):
            name = texts.get(command[1] if name == "EVAL" else "", name)
        if name in UNKNOWABLE or name == "SCRIPT LOAD" or str(row.reply).startswith("NOSCRIPT"):
            continue
        if command[0] in ("EVAL", "EVALSHA"):
            command[:2] = ["EVAL", timed(name, recorder.server.run_id, row.now)]
        if row.link not in connections:
            connections[row.link] = client.connection_pool.get_connection()
        real = scanned(client, command) if name == "SCAN" else answer_on(connections[row.link], command)
        assert comparable(name, real) == comparable(name, row.reply), f"{number}: {name} {row.command[2:]}"


def scanned(client: Any, command: Sequence[Any]) -> Any:
    """All pages of the real server as one, which is what the model answers."""
    found: list[Any] = []
    cursor = command[1]
    while True:
        cursor, page = answer(client, [command[0], cursor, *command[2:]])
        found += page
        if cursor == b"0":
            return [cursor, found]


def timed(name: str, run_id: str, now: int) -> str:
    """A script's text by the model's clock."""
    text = source(name, run_id)
    assert LOADER in text
    place = {"seconds": now // 1_000_000, "rest": now % 1_000_000, "milliseconds": now // 1_000}
    return text.replace(LOADER, _TIMED % place, 1)


def answer(client: Any, command: Sequence[Any]) -> Any:
    """The reply of the real server, with nothing made of it by the client."""
    connection = client.connection_pool.get_connection()
    try:
        return answer_on(connection, command)
    finally:
        client.connection_pool.release(connection)


def answer_on(connection: Any, command: Sequence[Any]) -> Any:
    try:
        connection.send_command(*command)
        return connection.read_response()
    except ResponseError as error:
        return Refusal(f"{type(error).__name__} {error}")


def comparable(name: str, reply: Any) -> Any:
    """A reply without what Redis does not promise: the order in a hash, the words of an error."""
    if isinstance(reply, Refusal):
        text = str(reply)
        return "WRONGTYPE" if "WRONGTYPE" in text else "an error"
    if name in UNORDERED:
        return _sorted(reply)
    return _plain(reply)


def _plain(reply: Any) -> Any:
    if isinstance(reply, list):
        return [_plain(part) for part in reply]
    return bytes(reply) if isinstance(reply, Status) else reply


def _sorted(reply: Any) -> Any:
    return sorted((_sorted(part) for part in reply), key=repr) if isinstance(reply, list) else _plain(reply)


def read_keyspace(client: Any) -> Keyspace:
    """All that a real server holds."""
    found = Keyspace()
    for key in client.scan_iter(count=1000):
        match client.type(key):
            case b"hash":
                found.keys[key] = client.hgetall(key)
            case b"list":
                found.keys[key] = client.lrange(key, 0, -1)
            case b"set":
                found.keys[key] = client.smembers(key)
            case b"zset":
                found.keys[key] = Scores(client.zrange(key, 0, -1, withscores=True))
            case b"string":
                found.keys[key] = client.get(key)
            case b"stream":
                found.keys[key] = _read_stream(client, key)
    return found


def _read_stream(client: Any, key: bytes) -> Stream:
    stream = Stream()
    for id_, fields in answer(client, ["XRANGE", key, "-", "+"]):
        stream.ids.append(read_id(id_))
        stream.fields.append(fields)
    stream.last = read_id(client.xinfo_stream(key)["last-generated-id"])
    return stream
