"""The counters of a server, read from all of its addresses that count, and by rank.

A source of counters is an address with a page of them, in the format of Prometheus. A rank is a process of the server, or a part of one
with its own value of a label, such as ``engine``. Counters of speculation count drafts and accepted tokens; traffic is the tokens and
requests of all clients.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pytest_specdec.engines.optional import RankLabel
from pytest_specdec.engines.protocol import CounterSource
from pytest_specdec.errors import SetupError
from pytest_specdec.model.spec_counters import RankCounters, SpecCounters

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pytest_specdec.engines.protocol import Dialect, ServerSetup
    from pytest_specdec.engines.server_counts import Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterReading:
    """What all ranks of a server counted, read at one time."""

    counters: SpecCounters | None
    """Of speculation, the sum over the ranks; None if no rank counts it."""
    traffic: Traffic
    """The sum over the ranks."""
    ranks: Mapping[str, RankCounters] = field(default_factory=dict)
    """Of speculation by rank; empty for a server with one source of counters and no label."""


def read(setup: ServerSetup, dialect: Dialect, *, seconds: float) -> CounterReading | None:
    """Return a reading of the counters of a server.

    Every source gets ``seconds`` to answer. Returns None if the engine has no counters, or if one of the sources does not answer: a sum
    over the others would be too small.
    """
    from pytest_specdec.capture.server.readiness import get  # noqa: PLC0415 - the checks of a config ask no server: no openai

    pages: dict[str, str] = {}
    for name, source_setup, path in places(setup, dialect):  # the server's setup with the address and path of one source
        page = get(source_setup, path, seconds=seconds)
        if page is None:  # no answer; or the path is None, as for an engine without counters
            return None
        pages[name] = page
    # Without a page that counts speculation ``counts`` is empty, and so are the ranks.
    counts = {name: counters for name, page in pages.items() if (counters := dialect.counters(page)) is not None}
    return CounterReading(
        counters=sum(counts.values(), SpecCounters()) if counts else None,
        traffic=reduce(add, map(dialect.traffic, pages.values())),
        ranks={rank.name: rank for name, page in pages.items() for rank in _ranks(name, page, dialect)} if counts else {},
    )


def places(setup: ServerSetup, dialect: Dialect) -> Iterator[tuple[str, ServerSetup, str | None]]:
    """Yield name, setup and path of each source of a server's counters.

    The name is that of the rank that counts there. The setup is the server's with the source's address, so that a GET goes there. The path
    is the one that the source states, else the engine's, and None if the engine has no counters. Without stated sources the server's own
    address is the only one, and its name is empty.
    """
    if not setup.counted:
        yield "", setup, dialect.counters_path
    for source in setup.counted:
        address = urlsplit(source.url)
        path = address.path.rstrip("/") or dialect.counters_path
        query = f"?{address.query}" if path and address.query else ""
        yield source.name, replace(setup, attached=f"{address.scheme}://{address.netloc}"), f"{path}{query}" if path else None


def _ranks(source: str, page: str, dialect: Dialect) -> Iterator[RankCounters]:
    """Yield the counters of each rank on one page.

    A page with several values of the rank label has a rank for each. Any other page is one rank, named ``source``. If that name is empty,
    the server has no other rank, and nothing is yielded. A rank without counters of speculation, such as a prefill server, counts 0.
    """
    labels = _rank_labels(page, dialect)
    parts = {f"{source} {label}".strip(): _page_of_rank(page, label) for label in labels} if len(labels) > 1 else {source: page}
    for name, text in parts.items():
        if name:
            counters = dialect.counters(text) or SpecCounters()
            yield RankCounters(name=name, counters=counters, generated_tokens=dialect.traffic(text).generated_tokens)


def _rank_labels(page: str, dialect: Dialect) -> tuple[str, ...]:
    """Return the rank labels on a page, such as ``engine 0``, each once.

    On a page they look like ``engine="0"``. Returns an empty tuple for an engine without such labels.
    """
    name = dialect.rank_label if isinstance(dialect, RankLabel) else ""
    values = re.findall(rf'[{{,]{name}="([^"\\]*)"', page) if name else ()
    return tuple(dict.fromkeys(f"{name} {value}" for value in values))


def _page_of_rank(page: str, label: str) -> str:
    """Return the lines of a page for one rank.

    They are the lines with its label, and those without the label of any rank. ``label`` is its name and value with a space between, such
    as ``engine 0``; on the page it looks like ``engine="0"``.
    """
    name, _, value = label.partition(" ")
    this_rank, any_rank = f'{name}="{value}"', f'{name}="'
    return "\n".join(line for line in page.splitlines() if this_rank in line or any_rank not in line)


def sources(urls: Iterable[str]) -> tuple[CounterSource, ...]:
    """Return the counter sources at the addresses ``urls``.

    Each is named by its address without scheme, user and password.
    """
    return tuple(CounterSource(name=_name_address(url), url=url) for url in urls)


def check_sources(setup: ServerSetup, dialect: Dialect) -> None:
    """Raise SetupError for several counter sources that every reading resets.

    If one of them did not answer, there would be no reading, and what the others counted would be lost by their reset.
    """
    if len(setup.counted) > 1 and dialect.counters_drain:
        names = ", ".join(source.name for source in setup.counted)
        what = f"several counters that every reading resets: {names}"
        remedy = "name one address under `metrics_url`, or count one process of the stack"
        raise SetupError(what, where="metrics_url", found=f"{len(setup.counted)} sources", expected="one", remedy=remedy)


def _name_address(url: str) -> str:
    address = urlsplit(url)
    return address._replace(scheme="", netloc=address.netloc.rpartition("@")[2]).geturl().strip("/")


def subtract_ranks(before: Mapping[str, RankCounters], after: Mapping[str, RankCounters]) -> tuple[RankCounters, ...]:
    """Return what each rank counted between two readings.

    Empty if the ranks are not the same in both, or if the counters of one began anew.
    """
    counted = tuple(after[name] - before[name] for name in after) if before.keys() == after.keys() else ()
    return () if any(rank.began_anew for rank in counted) else counted
