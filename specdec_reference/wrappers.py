"""Wrappers: functions before, after, around or in place of the methods and decisions of one engine, which knows nothing of them."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdec_reference.engine import ReferenceEngine
    from specdec_reference.rules import EngineRules

_MAKERS: Final = {"sequence": "sequences", "response": "response", "reply": "reply"}
"""Methods of the engine that make an object for each request, by the object's name."""


class Moment(StrEnum):
    """When a wrapper runs."""

    BEFORE = "before"
    AFTER = "after"
    """It is given the result and returns another."""
    AROUND = "around"
    """It is given the method and calls it itself."""
    INSTEAD = "instead of"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapper:
    """A function that runs at some moment of a method's calls.

    It names the arguments that it needs, as a hook of pluggy does; ``engine`` is the engine itself. The
    result or the method comes before them.
    """

    moment: Moment
    function: Callable[..., Any]

    def wrap(self, method: Callable[..., Any], engine: ReferenceEngine | None = None) -> Callable[..., Any]:
        """Return ``method`` with the function at its moment.

        Raises ValueError for an argument of the function that the method does not have.
        """
        function, moment = self.function, self.moment
        names = [*inspect.signature(function).parameters]
        if moment in {Moment.AFTER, Moment.AROUND}:
            del names[0]  # the result, or the method itself
        parameters = [*inspect.signature(method).parameters]
        # Callers may pass arguments by place: there an argument is looked up by its index.
        indices = {name: parameters.index(name) for name in names if name != "engine"}

        @functools.wraps(method, updated=())
        def wrapped(*args: object, **kwargs: object) -> object:
            given = kwargs | {"engine": engine}
            chosen = {name: given[name] if name in given else args[indices[name]] for name in names}
            if moment is Moment.BEFORE:
                function(**chosen)
            if moment is Moment.INSTEAD:
                return function(**chosen)
            if moment is Moment.AROUND:
                return function(method, **chosen)
            result = method(*args, **kwargs)
            return function(result, **chosen) if moment is Moment.AFTER else result

        return wrapped


def wrap_rules(wrappers: Mapping[str, Wrapper], rules: EngineRules) -> EngineRules:
    """Return the rules with the wrapped decisions among ``wrappers``."""
    return replace(rules, **{name: wrapper.wrap(getattr(rules, name)) for name, wrapper in wrappers.items() if "." not in name})


def wrap_methods(wrappers: Mapping[str, Wrapper], engine: ReferenceEngine) -> None:
    """Wrap the methods of one engine, named ``object.method``.

    An object made for each request, as a sequence, is wrapped after the engine's method that makes it. Names without an
    object are left to :func:`wrap_rules`.
    """
    owners = {
        "engine": engine,
        "batch": engine.batch,
        "drafter": engine.batch.drafter,
        "counters": engine.counters,
        "memory": engine.memory,
        "prefixes": engine.batch.prefixes,
    }
    for name, wrapper in wrappers.items():
        owner, _, method = name.rpartition(".")
        if owner in _MAKERS:
            wrap_products = functools.partial(_wrap_products, wrapper, method)
            _replace(engine, _MAKERS[owner], Wrapper(moment=Moment.AFTER, function=wrap_products), engine)
        elif owner:
            _replace(owners[owner], method, wrapper, engine)


def wrap_object(wrappers: Mapping[str, Wrapper], name: str, owner: object) -> None:
    """Wrap the methods of ``owner``, which the wrappers call ``name``.

    Wrappers of other objects are left out.
    """
    for key, wrapper in wrappers.items():
        if key.partition(".")[0] == name:
            method = key.partition(".")[2]
            vars(owner)[method] = wrapper.wrap(getattr(owner, method))


def _wrap_products(wrapper: Wrapper, method: str, products: object, engine: ReferenceEngine) -> object:
    """Wrap a method of what the engine made for a request.

    Returns ``products``, which are one object or a tuple of them.
    """
    for product in products if isinstance(products, tuple) else (products,):
        _replace(product, method, wrapper, engine)
    return products


def _replace(owner: object, method: str, wrapper: Wrapper, engine: ReferenceEngine) -> None:
    # In the object's own dictionary: a response is frozen, and no other engine of the process has the fault.
    vars(owner)[method] = wrapper.wrap(getattr(owner, method), engine)
