"""The tokenizer: text to ids, ids to bytes and characters as they come, and conversations to prompts."""

from __future__ import annotations

import codecs
import json
from functools import cached_property
from typing import TYPE_CHECKING, Final

from tokenizers import Tokenizer as Encoder

from pytest_specdec.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from jinja2 import Template

_TOOL_TAGS: Final = ("<tool_call>", "</tool_call>")
"""Added tokens with a text, whatever else is said of them: a parser of tool calls looks for it."""


class Text:
    """The text of one sequence; bytes of an unfinished character wait, and so does what might begin a stop string that is cut off.

    ``pieces`` are the bytes of every token id. ``whole`` is the text so far; :meth:`release` hands it out part by part.
    """

    def __init__(self, pieces: Sequence[bytes], stops: tuple[str, ...]) -> None:
        self._pieces = pieces
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._held = max(map(len, stops), default=1) - 1
        """Last characters that wait, since a stop string may begin with them."""
        self._released = 0  # characters handed out
        self.whole = ""

    def take(self, token: int) -> None:
        """Append a token."""
        self.whole += self._decode(self._pieces[token])

    def cut(self, length: int) -> None:
        """Keep only the first ``length`` characters.

        A stop string ends the text there.
        """
        self.whole = self.whole[:length]

    def end(self) -> None:
        """End the text without a stop string.

        No more tokens come. The bytes that were waiting become text now.
        """
        self.whole += self._decode(b"", True)  # noqa: FBT003 - the codec's own signature

    def release(self, *, ended: bool) -> str:
        """Return the certain characters not returned before.

        Certain are those that no stop string can cut off any more; all of them once the sequence has ``ended``.
        """
        end = len(self.whole) if ended else max(self._released, len(self.whole) - self._held)
        new_text = self.whole[self._released : end]
        self._released = end
        return new_text


class Tokenizer:
    """A byte-level BPE tokenizer as a checkpoint ships it. Special tokens have no text, but for the tags of tool calls."""

    def __init__(self, folder: Path, vocabulary: int) -> None:
        self.file = folder / "tokenizer.json"
        self.vocabulary = vocabulary
        self._template_file = folder / "chat_template.jinja"
        document = json.loads(self.file.read_text("utf-8"))
        if (document.get("decoder") or {}).get("type") != "ByteLevel":
            raise EngineError(
                what="the reference engine cannot use this tokenizer",
                where=f"{self.file}: decoder.type",
                found=json.dumps(document.get("decoder")),
                expected="ByteLevel",
                remedy="use a checkpoint with a byte-level BPE tokenizer",
            )
        self.tool_tokens = set(_TOOL_TAGS) <= {token["content"] for token in document.get("added_tokens") or []}
        """Whether the tags of tool calls are tokens."""
        self._encoder = Encoder.from_file(str(self.file))
        self.pieces = _token_bytes(document, vocabulary)
        """The bytes of every token id; empty for special tokens and for ids without a token."""
        self.named_pieces = _token_bytes(document, vocabulary, special=True)
        """The same with special tokens by their name, as where they are not skipped."""

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of a prompt."""
        return tuple(self._encoder.encode(text).ids)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Every token alone as text, by id.

        Special tokens have their name, half characters are U+FFFD.
        """
        name_of = self._encoder.id_to_token
        return tuple(piece.decode("utf-8", "replace") if piece else name_of(token) or "" for token, piece in enumerate(self.pieces))

    def format_chat(self, messages: Sequence[Mapping[str, str]], instructions: str = "") -> str:
        """Return the prompt of a conversation, up to the assistant's turn.

        ``instructions`` join the system message. A tool's answer is said by the user, as in Qwen's template.
        Raises ValueError where the template refuses.
        """
        from jinja2 import TemplateError  # noqa: PLC0415 - 40 ms of boot that completions do not need

        try:
            return self._template.render(messages=_add_instructions(messages, instructions), add_generation_prompt=True)
        except TemplateError as error:
            msg = f"the chat template refuses these messages: {error}"
            raise ValueError(msg) from error

    @cached_property
    def _template(self) -> Template:
        """The chat template of the checkpoint.

        Raises ValueError without one.
        """
        from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415 - as above

        if not self._template_file.is_file():
            msg = f"this checkpoint has no chat template: {self._template_file.name} is missing"
            raise ValueError(msg)
        # Autoescaping is for HTML; a prompt is none.
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
        return environment.from_string(self._template_file.read_text("utf-8"))


def _add_instructions(messages: Sequence[Mapping[str, str]], instructions: str) -> list[Mapping[str, str]]:
    """Return messages with ``instructions`` in the system message.

    Messages of tools become the user's.
    """
    turns = [_tool_message_as_user(message) if message["role"] == "tool" else message for message in messages]
    if not instructions:
        return turns
    system_text = turns.pop(0)["content"] + "\n\n" if turns and turns[0]["role"] == "system" else ""
    return [{"role": "system", "content": system_text + instructions}, *turns]


def _tool_message_as_user(message: Mapping[str, str]) -> Mapping[str, str]:
    return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}


def _token_bytes(document: Mapping[str, object], vocabulary: int, *, special: bool = False) -> tuple[bytes, ...]:
    """Return the bytes of every token, by id.

    ``document`` is tokenizer.json, whose words have a letter for each byte. Special tokens have no bytes unless ``special``.
    """
    model, added = document["model"], document.get("added_tokens") or []
    assert isinstance(model, dict)
    assert isinstance(added, list)
    byte_of_letter = _byte_letters()
    pieces = [b""] * vocabulary
    for word, token in model["vocab"].items():
        if token < vocabulary:
            pieces[token] = bytes(byte_of_letter[letter] for letter in word if letter in byte_of_letter)
    for token in added:
        is_textless = token["special"] and not special and token["content"] not in _TOOL_TAGS
        pieces[token["id"]] = b"" if is_textless else token["content"].encode()
    return tuple(pieces)


def _byte_letters() -> dict[str, int]:
    """Return GPT-2's alphabet: a printable letter for every byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
