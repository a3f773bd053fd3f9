"""What an engine may add to its protocol: each is found by its methods, so that nothing has to be declared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.config.config import Config
    from pytest_specdec.engines.protocol import Engine, Get
    from pytest_specdec.model.event import EventStep
    from pytest_specdec.model.workload import JSON
    from pytest_specdec.prompts.adapters import Adapters

__all__ = [
    "Adapting",
    "AnyEngine",
    "BugForm",
    "ConfigTemplate",
    "ImageTaking",
    "Offloading",
    "RankLabel",
    "Recognising",
    "ServerEvents",
    "SmallCache",
    "ThinkingBudgets",
]


@runtime_checkable
class Recognising(Protocol):
    """An engine that knows its servers by their endpoints."""

    def recognises(self, get: Get) -> bool:
        """Return True if the server is one of this engine's.

        ``get`` requests a path of the server. Paths whose reading resets a counter must not be requested.
        """


@runtime_checkable
class SmallCache(Protocol):
    """An engine that can start with a small key-value cache and counts preempted requests."""

    def small_cache(self, config: Config) -> Mapping[str, JSON] | None:
        """Return arguments for a cache of about a thousand tokens.

        They are laid over the arguments of every server, baseline and variants, so that concurrent requests run out of cache
        and are preempted. Returns None if the engine cannot do so with this config.
        """


@runtime_checkable
class ServerEvents(Protocol):
    """An engine with endpoints for events of its server.

    They put it to sleep, load its weights again, or empty or move its cache.
    """

    events_with: str
    """The engine's own settings under which it serves more events: the remedy if it has none."""

    def events(self, config: Config) -> Mapping[str, Sequence[EventStep]]:
        """Return the events that all servers of this config serve: by name, each one's steps.

        Names are those of :class:`pytest_specdec.model.event.EventName` where one fits, the mildest event first. After its
        last step the server has to answer requests as before.
        """


@runtime_checkable
class Adapting(Protocol):
    """An engine that serves LoRA adapters beside its model and lets each request choose."""

    def adapters(self, config: Config, args: Mapping[str, JSON]) -> Adapters:
        """Return the adapters of a server with these arguments.

        Each has the fields by which a request asks for it, such as ``lora_request``. A path in these fields is spelt as in the
        server's command, already resolved. There are no adapters without the arguments that load them.
        """


@runtime_checkable
class ImageTaking(Protocol):
    """An engine that knows before a start whether its model takes images."""

    def takes_images(self, config: Config) -> bool | None:
        """Return True if chats may hold images, False if not.

        It is read from the arguments of both arms and the checkpoint's files. Returns None where these do not say.
        """


@runtime_checkable
class Offloading(Protocol):
    """An engine that can keep key-value cache elsewhere when it leaves the device."""

    def why_not_offloaded(self, config: Config) -> str:
        """Return the reason the servers have no second tier for their cache.

        Empty if they have one.
        """


@runtime_checkable
class ThinkingBudgets(Protocol):
    """An engine that ends the reasoning of an answer after ``thinking_token_budget`` tokens."""

    def why_no_thinking_budget(self, config: Config) -> str:
        """Return the reason the servers do not tell reasoning from answers.

        Empty if they do.
        """


@runtime_checkable
class AnyEngine(Protocol):
    """An engine that stands for any other, found by asking the server at an address."""

    def candidates(self) -> Sequence[Engine]:
        """Return the possible engines, in the order to try them."""


@runtime_checkable
class ConfigTemplate(Protocol):
    """An engine that writes its own part of a new config.

    For any other, ``init`` writes the keys that all engines share.
    """

    def template(self, model: str | None, speculator: str | None) -> str:
        """Return commented YAML with the sections ``engine`` and ``variants`` of a config.

        It may have further sections; ``init`` adds those that are missing, as for any engine. ``model`` is the target. ``speculator``
        is a draft model, or a drafting method that needs none. Raises EngineError if a model is needed and None is given.
        """


@runtime_checkable
class RankLabel(Protocol):
    """A dialect of an engine that labels its counters by rank."""

    rank_label: str
    """The label's name in a Prometheus page."""


@runtime_checkable
class BugForm(Protocol):
    """An engine with a form for bugs in its issue tracker.

    For any other, ``repro`` writes a plain one.
    """

    def bug_form(self) -> str:
        """Return the form's sections in Markdown.

        ``{environment}``, ``{description}`` and ``{reproduction}`` stand for what is filled in.
        """
