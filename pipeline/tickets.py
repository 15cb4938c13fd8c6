"""Tickets: the Celery messages that scripts push, and the Celery settings that make pushing them safe.

A ticket is an ordinary Celery message (protocol 2 in kombu's envelope), rendered once per term and never pickled.
A test holds it equal to what the installed Celery publishes.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from pipeline.redis_addresses import dead_connection_options, split_addresses
from pipeline.store import keys

TASK: Final = "celeriac.ticket"
"""Name of the Celery task: "stage s, partition p has work"."""

TICK: Final = "celeriac.tick"
"""Name of the leader's Celery task."""


def ticket(job: str, stage: int, partition: int, term: int) -> bytes:
    """The ticket of one partition in one term.

    The task id holds the term, so a task that somebody revokes in Flower comes back with the next owner.
    """
    queue = keys.queue_name(job, stage, partition)
    return message(TASK, queue, f"{queue}.{term}", [stage, partition])


def message(task: str, queue: str, task_id: str, args: list[Any]) -> bytes:
    """A Celery message as kombu's Redis transport stores it. The tag may be constant: acks are not emulated."""
    body = [args, {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]
    headers: dict[str, Any] = {
        "lang": "py",
        "task": task,
        "id": task_id,
        "shadow": None,
        "eta": None,
        "expires": None,
        "group": None,
        "group_index": None,
        "retries": 0,
        "timelimit": [None, None],
        "root_id": task_id,
        "parent_id": None,
        "argsrepr": repr(tuple(args)),
        "kwargsrepr": "{}",
        "origin": "celeriac",
        "ignore_result": True,
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
    }
    properties = {
        "correlation_id": task_id,
        "reply_to": "",
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": queue},
        "priority": 0,
        "body_encoding": "base64",
        "delivery_tag": task_id,
    }
    return json.dumps(
        {
            "body": base64.b64encode(json.dumps(body).encode()).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": headers,
            "properties": properties,
        }
    ).encode()


def broker_url(redis_url: str) -> str:
    """The address as kombu wants it: `unix://` becomes `redis+socket://`. Of several kombu gets the first one."""
    redis_url = split_addresses(redis_url)[0]
    parts = urlsplit(redis_url)
    if parts.scheme != "unix":
        return redis_url
    database = parse_qs(parts.query).get("db", ["0"])[0]
    credentials = f"{parts.netloc}" if "@" in parts.netloc else ""
    return f"redis+socket://{credentials}{parts.path}?virtual_host={database}"


def celery_settings(redis_url: str) -> dict[str, Any]:
    """Settings of every Celery application of ours.

    A connection whose other end has vanished is noticed within seconds, not by kombu's half a minute.
    Acks are not emulated (they triple a ticket's cost, and a lost ticket is rung again); one priority step;
    short polls, so that a queue taken over is served within 0.1 s; no events, no results, JSON only.
    A lost connection cancels tasks that acknowledge late, of which there are none: unset, it has Celery give advice.
    """
    return {
        "broker_url": broker_url(redis_url),
        "broker_connection_retry_on_startup": True,
        "broker_transport_options": {
            "ack_emulation": False,
            "priority_steps": [0],
            "global_keyprefix": keys.PREFIX,
            "polling_interval": 0.1,
            "client_name": "celeriac-worker",
            **dead_connection_options(),
        },
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_ignore_result": True,
        "task_send_sent_event": False,
        "worker_prefetch_multiplier": 1,
        "worker_cancel_long_running_tasks_on_connection_loss": True,
        "worker_send_task_events": False,
        "worker_hijack_root_logger": False,
        "worker_enable_remote_control": True,
        "enable_utc": True,
    }
