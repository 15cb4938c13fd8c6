"""Flower with our pages in it, from outside: templates, handlers, one application. Flower's own code stays as it is.

All pages are read-only. What they show comes from a `Watch`, which has a thread of its own: Flower's loop never waits
for Redis.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from flower.app import Flower
from flower.urls import settings as flower_settings
from flower.views import BaseHandler
from flower.views.monitor import Metrics
from kombu.exceptions import OperationalError
from tornado.template import DictLoader
from tornado.web import RequestHandler, StaticFileHandler, authenticated, url

from pipeline.errors import EnvironmentFault
from pipeline.flower.access import Access
from pipeline.flower.watch import Answer, Watch

HERE: Final = Path(__file__).parent
JOB_PATTERN: Final = r"([A-Za-z0-9][A-Za-z0-9_.-]{0,99})"

_TAB: Final = """
        <li class="nav-item">
          <a class="nav-link{% if active_tab == 'pipelines' %} active{% end %}"
            href="{{ reverse_url('pipelines') }}"
            {% if active_tab == 'pipelines' %}aria-current="page"{% end %}>Pipelines</a>
        </li>"""


def page_templates() -> dict[str, str]:
    """Flower's templates with our tab in the navigation bar, and ours. Raises EnvironmentFault for a strange Flower."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in Path(flower_settings["template_path"]).glob("*")}
    before, broker, after = texts.get("navbar.html", "").rpartition("reverse_url('broker')")
    rest, end, behind = after.partition("</li>")
    if not broker or not end:
        raise EnvironmentFault("this Flower has another navigation bar", hint="pip install 'celeriac[flower]'")
    texts["navbar.html"] = f"{before}{broker}{rest}{end}{_TAB}{behind}"
    return texts | {path.name: path.read_text(encoding="utf-8") for path in (HERE / "templates").glob("*.html")}


class PipelineFlower(Flower):
    """Flower's application, closed where Flower leaves it open, with the pages of this project."""

    def __init__(self, access: Access, watch: Watch, **options: Any) -> None:
        self._access = access
        self._watch = watch
        self._looking = ThreadPoolExecutor(max_workers=1, thread_name_prefix="watch")
        super().__init__(template_loader=DictLoader(page_templates()), **options)
        self.add_handlers(
            ".*",
            [
                url(r"/pipelines", JobsPage, name="pipelines"),
                url(rf"/pipelines/{JOB_PATTERN}", JobPage, name="pipeline"),
                url(r"/api/pipelines", JobsData, name="pipelines_data"),
                url(rf"/api/pipelines/{JOB_PATTERN}", JobData, name="pipeline_data"),
                url(r"/pipeline-assets/(.*)", StaticFileHandler, {"path": str(HERE / "assets")}, name="pipeline_asset"),
                (r"/metrics", ClosedMetrics),
            ],
        )

    def find_handler(self, request: Any, **rest: Any) -> Any:
        """Every request passes here."""
        if not self._access.admits_host(request.host):
            return self.get_handler_delegate(request, ForeignHost)
        return super().find_handler(request, **rest)

    async def look(self, what: Callable[[Watch], Answer]) -> Answer:
        """Asks the watch in its thread."""
        return await asyncio.get_running_loop().run_in_executor(self._looking, what, self._watch)

    async def run(self, stopped: asyncio.Event) -> None:
        """What Flower's start and stop do, within a loop that runs already. Ends when `stopped` is set."""
        self.events.start()
        self.started = True
        self.update_workers()
        try:
            await stopped.wait()
        finally:
            self.started = False
            self.events.stop()
            if self.options.enable_events:
                await self._end_events()
            self._looking.shutdown(wait=False, cancel_futures=True)

    async def _end_events(self) -> None:
        """Workers would go on to send them, to nobody."""
        try:
            await self.io_loop.run_in_executor(None, self.capp.control.disable_events)
        except OperationalError:
            return  # the broker is away, and workers that come back have them off


class ForeignHost(RequestHandler):
    """Answers what came under a name that is not this machine's."""

    def prepare(self) -> None:
        self.set_status(403)
        self.finish("This Flower has no password, so it answers to localhost only.\n")


class ClosedMetrics(Metrics):
    """Flower's metrics, which it leaves open even when a password is set."""

    @authenticated
    async def get(self) -> None:
        await super().get()


class JobsPage(BaseHandler):
    @authenticated
    async def get(self) -> None:
        self.render("pipelines.html", job="", data=self.reverse_url("pipelines_data"))


class JobPage(BaseHandler):
    @authenticated
    async def get(self, job: str) -> None:
        has_events = self.application.options.enable_events
        self.render("pipeline.html", job=job, data=self.reverse_url("pipeline_data", job), has_events=has_events)


class JobsData(BaseHandler):
    @authenticated
    async def get(self) -> None:
        send(self, await self.application.look(Watch.jobs))


class JobData(BaseHandler):
    @authenticated
    async def get(self, job: str) -> None:
        send(self, await self.application.look(lambda watch: watch.job(job)))


def send(handler: RequestHandler, answer: Answer) -> None:
    """Sends the answer, never to be stored by anybody on the way."""
    handler.set_status(answer.status)
    handler.set_header("Content-Type", "application/json")
    handler.set_header("Cache-Control", "no-store")
    handler.write(answer.body)
