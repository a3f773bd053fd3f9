"""Seeding: one seed again and again, other seeds, no seed, several choices; alone and with concurrent requests.

A draw is a request to sample: the prompt's index, the seed, and the number of choices. A wave is the draws that are sent at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_specdec.model.workload import Depth, Request, Workload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.model.workload import JSON
    from pytest_specdec.prompts.prompts import Prompts

__all__ = ["seeding"]

_CHOICES: Final = 3

_Draw = tuple[int, int | None, int]
"""The prompt's index, the seed, and the number of choices."""


def _wave(*prompts_and_seeds: tuple[int, int | None]) -> tuple[_Draw, ...]:
    return tuple((prompt, seed, 1) for prompt, seed in prompts_and_seeds)


_REPEATED: Final = ((0, 1), (0, 2), *((prompt, 5 + 2 * prompt + half) for prompt in range(1, 12) for half in (0, 1)))
"""Prompts and seeds, each sent twice alone and once among others.

The judge counts the pairs of equal requests whose answers differ. Eighteen pairs are the fewest for its exact test at a usual share of
alpha. With 24 the test rejects 22 and 23 differing pairs too: the first row of a batch has the place of a request sent alone, so that a
fault of rows may spare it.
"""
_FIRST: Final = (
    *(_wave((0, seed)) for seed in (1, 1, 2, 2)),
    _wave((0, 1), (0, 3), (0, 4)),
    _wave((0, None)),
    _wave((0, None)),
    ((0, 5, _CHOICES),),
)
_MORE: Final = (
    *(_wave(draw) for draw in _REPEATED[2:] for _ in range(2)),
    _wave(*_REPEATED),
    _wave((0, None), (0, None)),
    ((0, None, _CHOICES),),
)


def _shift(waves: tuple[tuple[_Draw, ...], ...], by: int) -> tuple[tuple[_Draw, ...], ...]:
    """Return the same waves of requests with other prompts and seeds.

    They differ for each number ``by``: prompt indices grow by 12 times ``by``, seeds by 100 times ``by``. The unshifted waves have 12
    prompts and seeds below 100, so that none of their seeds comes again.
    """

    def shift(prompt: int, seed: int | None, choices: int) -> _Draw:
        return prompt + 12 * by, None if seed is None else seed + 100 * by, choices

    return tuple(tuple(shift(*draw) for draw in wave) for wave in waves)


_WAVES: Final = (*_FIRST, *_MORE, *_shift((*_FIRST, *_MORE), 1))
_SMOKE, _STANDARD = (sum(map(len, waves)) for waves in (_FIRST, (*_FIRST, *_MORE)))


def seeding(prompts: Prompts, *, name: str = "", take: Mapping[Depth, int] | None = None) -> Workload:
    """Return requests that repeat seeds, change them, or have none, in waves.

    They sample 32 tokens from the model's unprocessed distribution, at temperature 1, so that the baseline's scores of the answers show how
    likely two of them are to agree by chance. ``take`` has the number of requests sent at each depth; by default ``_SMOKE`` and
    ``_STANDARD``, and at deep depth all.
    """
    draws = [draw for wave in _WAVES for draw in wave]
    return Workload(
        name=name or f"{prompts.name}-seeds",
        version=2,
        requests=tuple(_seeded_request(prompts, number, *draw) for number, draw in enumerate(draws)),
        take=take or {Depth.SMOKE: _SMOKE, Depth.STANDARD: _STANDARD},
        waves=tuple(map(len, _WAVES)),
        concurrency=max(map(len, _WAVES)),
        top_tokens=1,
    )


def _seeded_request(prompts: Prompts, number: int, prompt_index: int, seed: int | None, choices: int) -> Request:
    """Return request ``number``, from 0, with one prompt and seed.

    ``prompt_index`` goes round the prompts. ``seed`` is None for a request without one. ``choices`` is the number of its answers.
    """
    prompt = prompts.items[prompt_index % len(prompts.items)]
    optional: dict[str, JSON] = {} if seed is None else {"seed": seed}
    optional |= {} if choices == 1 else {"n": choices}
    body: dict[str, JSON] = {"max_tokens": 32, "temperature": 1.0, "top_p": 1.0, **optional}
    suffix = "unseeded" if seed is None else f"seed{seed}"
    return Request(id=f"{number:03}-{prompt.id}-{suffix}", route=prompt.route, body={**prompt.content, **body})
