"""Faults of stop strings and of text, where tokens are turned into it; the tokens themselves are right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdec_vllm_patches.registry import patch

if TYPE_CHECKING:
    from collections.abc import Callable


def _updated(update: Callable[[Callable[..., str | None], Any, list[int], bool], str | None]) -> None:
    """Put ``update`` in place of the detokenizer's own, which it is given."""
    from vllm.v1.engine import detokenizer

    stock = detokenizer.BaseIncrementalDetokenizer.update

    def instead(self: Any, new_token_ids: list[int], stop_terminated: bool) -> str | None:
        return update(stock, self, new_token_ids, stop_terminated)

    detokenizer.BaseIncrementalDetokenizer.update = instead


def _searched(search: Callable[[Callable[..., tuple[str, int] | None], str, int, list[str], bool], tuple[str, int] | None]) -> None:
    """Put ``search`` in place of the search for stop strings, which it is given."""
    from vllm.v1.engine import detokenizer

    stock = detokenizer.check_stop_strings

    def check_stop_strings(output_text: str, new_char_count: int, stop: list[str], include_in_output: bool) -> tuple[str, int] | None:
        return search(stock, output_text, new_char_count, stop, include_in_output)

    detokenizer.check_stop_strings = check_stop_strings


@patch
def stop_missed_mid_window() -> None:
    """Look for a stop string at the last token of a window only."""

    def update(stock: Callable[..., str | None], self: Any, tokens: list[int], stopped: bool) -> str | None:
        wanted, self.stop = self.stop, []
        stock(self, tokens[:-1], False)
        self.stop = wanted
        return stock(self, tokens[-1:], stopped)

    _updated(update)


@patch
def stop_split_missed() -> None:
    """Look for a stop string in each window alone, so that one over two windows is missed."""

    def search(stock: Callable[..., Any], text: str, new: int, stop: list[str], include: bool) -> tuple[str, int] | None:
        found: tuple[str, int] | None = stock(text[len(text) - new :], new, stop, include)
        return found and (found[0], found[1] if found[1] < 0 else found[1] + len(text) - new)

    _searched(search)


@patch
def text_behind_stop() -> None:
    """Deliver the whole window in which a stop string ends, and stop after it."""

    def search(stock: Callable[..., Any], text: str, new: int, stop: list[str], include: bool) -> tuple[str, int] | None:
        found: tuple[str, int] | None = stock(text, new, stop, include)
        return found and (found[0], -1)

    _searched(search)


@patch
def stop_not_cut() -> None:
    """Leave the stop string at the end of the text."""

    def search(stock: Callable[..., Any], text: str, new: int, stop: list[str], _include: bool) -> tuple[str, int] | None:
        found: tuple[str, int] | None = stock(text, new, stop, True)
        return found

    _searched(search)


@patch
def window_edge_dropped() -> None:
    """Drop the first character of every verify step of two tokens or more."""

    def update(stock: Callable[..., str | None], self: Any, tokens: list[int], stopped: bool) -> str | None:
        before = len(self.output_text)
        found = stock(self, tokens, stopped)
        if len(tokens) > 1:
            self.output_text = self.output_text[:before] + self.output_text[before + 1 :]
        return found

    _updated(update)


@patch
def stream_tail_lost() -> None:
    """End a stream without the text of its last step."""
    from vllm.v1.engine import detokenizer

    base = detokenizer.BaseIncrementalDetokenizer
    stock = base.get_next_output_text

    def get_next_output_text(self: Any, finished: bool, delta: bool) -> str:
        return "" if finished and delta else stock(self, finished, delta)

    base.get_next_output_text = get_next_output_text


@patch
def stream_step_lost() -> None:
    """Stream nothing of the text of the third step."""
    from vllm.v1.engine import detokenizer

    third = 3
    base = detokenizer.BaseIncrementalDetokenizer
    stock = base.get_next_output_text

    def get_next_output_text(self: Any, finished: bool, delta: bool) -> str:
        self.specdec_steps = getattr(self, "specdec_steps", 0) + 1
        text = stock(self, finished, delta)
        return "" if delta and self.specdec_steps == third else text

    base.get_next_output_text = get_next_output_text
