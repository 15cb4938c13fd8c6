"""The connections of one worker to the places outside that its sinks write to, shared by all its partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pipeline.errors import EnvironmentFault
from pipeline.graph import Node, Sink
from pipeline.plan import SinkPlan
from pipeline.sinks.call_sink import CallCarrier
from pipeline.sinks.effects import EFFECT_FORMATS, Effect
from pipeline.sinks.numbered import Carrier, NumberedEffect
from pipeline.sinks.secrets import is_variable, normal_database, value_of


class SinkLinks:
    """Makes the effects of a partition. Addresses come from the graph: the plan does not hold their secrets."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._specs = {node.name: node.spec for node in nodes if isinstance(node, Sink)}
        self._open: dict[str, Any] = {}

    def effects(self, sinks: Iterable[SinkPlan]) -> list[Effect]:
        """The effects of one partition of a stage with these sinks: those that can be taken back come first.

        Raises EnvironmentFault when an extra or a variable is missing, SinkError for an address that cannot be one.
        """
        wanted = [sink for sink in sinks if sink.format in EFFECT_FORMATS]
        made = self._sql([sink for sink in wanted if sink.format == "sql"])
        made += [NumberedEffect(sink, self._carrier(sink)) for sink in wanted if sink.format != "sql"]
        return made

    def check(self, sinks: Iterable[SinkPlan]) -> None:
        """To be asked before a run. Raises as `effects`, and when a place cannot take what it will be given."""
        wanted = [sink for sink in sinks if sink.format in EFFECT_FORMATS]
        self.effects(wanted)
        for url, alike in self._by_database(wanted).items():
            self._sql_module().check_sql_sinks(self._database(url), alike)

    def close(self) -> None:
        """Closes all connections. What is used after that opens them anew."""
        for link in self._open.values():
            link.drop()

    def _sql(self, sinks: list[SinkPlan]) -> list[Effect]:
        return [
            self._sql_module().sql_effect(self._database(url), alike) for url, alike in self._by_database(sinks).items()
        ]

    def _carrier(self, sink: SinkPlan) -> Carrier:
        make = {"http": self._http, "kafka": self._kafka, "call": self._call}[sink.format]
        return self._shared(f"{sink.format} {sink.name}", lambda: make(sink))  # type: ignore[no-any-return]

    def _call(self, sink: SinkPlan) -> Carrier:
        fn = self._specs[sink.name].fn
        assert fn is not None
        return CallCarrier(sink.name, fn, sink.options["batch"])

    def _http(self, sink: SinkPlan) -> Carrier:
        with _extra("a web address", "http"):
            from pipeline.sinks.http_sink import HttpCarrier
        secrets = self._secrets(sink)
        headers = {name.removeprefix("header "): text for name, text in secrets.items() if name.startswith("header ")}
        return HttpCarrier(secrets["url"], headers, sink.options["batch"], sink.options["timeout_seconds"])

    def _kafka(self, sink: SinkPlan) -> Carrier:
        with _extra("Kafka", "kafka"):
            from pipeline.sinks.kafka_sink import KafkaCarrier
        settings = self._secrets(sink)
        return KafkaCarrier(settings.pop("servers"), sink.options["topic"], settings, sink.options["batch"])

    def _secrets(self, sink: SinkPlan) -> dict[str, str]:
        owner = f"of the sink {sink.name!r}"
        return {name: value_of(text, f"{name} {owner}") for name, text in self._specs[sink.name].secrets.items()}

    def _by_database(self, sinks: Iterable[SinkPlan]) -> dict[str, list[SinkPlan]]:
        found: dict[str, list[SinkPlan]] = {}
        for sink in sinks:
            if sink.format == "sql":
                found.setdefault(self._database_url(sink), []).append(sink)
        return found

    def _database_url(self, sink: SinkPlan) -> str:
        text = self._specs[sink.name].secrets["url"]
        owner = f"the database of the sink {sink.name!r}"
        url = value_of(text, owner)
        return normal_database(url, owner) if is_variable(text) else url

    def _database(self, url: str) -> Any:
        return self._shared(f"sql {url}", lambda: self._sql_module().open_database(url))

    def _sql_module(self) -> Any:
        with _extra("a database", "sql"):
            from pipeline.sinks import sql_sink
        return sql_sink

    def _shared(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self._open:
            self._open[name] = make()
        return self._open[name]


@contextmanager
def _extra(what: str, extra: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise EnvironmentFault(
            f"a sink writes to {what}, which needs {error.name}", f"pip install 'celeriac[{extra}]'"
        ) from error
