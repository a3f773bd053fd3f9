"""The tokenizer and the chat template of a checkpoint on this machine, for engines whose servers give ids or text but not both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pytest_specdec.engines import checkpoint

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from jinja2 import Template

    from pytest_specdec.model.workload import JSON

_NEEDS = ("tokenizers", "jinja2")
_FILE = "tokenizer.json"
_TODAY = "2026-01-01"
"""The date that templates print, the same in every boot of a run whatever the night."""
_UNSPACED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
"""What transformers' ``clean_up_tokenization_spaces`` writes without the spaces."""


class CheckpointTokenizer:
    """A checkpoint's own tokenizer, which the server of that checkpoint uses too."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer  # noqa: PLC0415 - an extra that other engines do without

        self._folder = folder
        self._tokenizer = Tokenizer.from_file(str(folder / _FILE))
        self._settings = _read_json_object(folder / "tokenizer_config.json")

    @classmethod
    def of(cls, model: str, environ: Mapping[str, str]) -> CheckpointTokenizer | None:
        """Return the tokenizer of a model; None if unavailable.

        It needs the model's ``tokenizer.json`` on this machine, and the packages to read it. ``environ`` are the variables of the
        model's server, which may name another cache of the hub than this process's.
        """
        folder = checkpoint.find_folder(model, environ)
        if not (folder / _FILE).is_file() or any(find_spec(name) is None for name in _NEEDS):
            return None
        return cls(folder)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a prompt of plain text.

        They include the tokens that the tokenizer puts before a prompt, such as one for the beginning of a text.
        """
        return tuple(self._tokenizer.encode(text).ids)

    def encode_answer(self, text: str) -> tuple[int, ...]:
        """Return the tokenizer's ids for the text of an answer.

        They do not include the tokens that begin a prompt.
        """
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_chat(self, messages: Sequence[JSON], arguments: Mapping[str, JSON]) -> tuple[int, ...]:
        """Return a conversation's token ids up to the assistant's next turn.

        ``arguments`` are further variables of the checkpoint's chat template, which also writes the special tokens.
        Returns an empty tuple without a template, or if the template refuses the messages.
        """
        from jinja2 import TemplateError  # noqa: PLC0415 - an extra that other engines do without

        if self._template is None:
            return ()
        try:
            text = self._template.render(messages=messages, **{"add_generation_prompt": True, **arguments})
        except (TemplateError, TypeError, ValueError):
            return ()
        # The template has written the special tokens already.
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of an answer, without special tokens."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def name(self, token_id: int) -> str:
        """Return the text of a single token, decoded without any others.

        Servers that list tokens by text instead of id use this text. Returns an empty string for an id without a token.
        """
        return self._names[token_id] if 0 <= token_id < len(self._names) else ""

    def find_ids(self, name: str) -> Sequence[int]:
        """Return the ids of all tokens with the text ``name``; empty without any."""
        return self._ids_by_name.get(name, ())

    @cached_property
    def _names(self) -> tuple[str, ...]:
        """The text of every token, decoded alone, by id."""
        count = self._tokenizer.get_vocab_size(with_added_tokens=True)
        names = self._tokenizer.decode_batch([[token] for token in range(count)], skip_special_tokens=False)
        return tuple(map(_clean_up_spaces, names)) if self._settings.get("clean_up_tokenization_spaces") is True else tuple(names)

    @cached_property
    def _ids_by_name(self) -> dict[str, list[int]]:
        """The ids of all tokens with one text, by that text."""
        ids_by_name: dict[str, list[int]] = {}
        for token, name in enumerate(self._names):
            ids_by_name.setdefault(name, []).append(token)
        return ids_by_name

    @cached_property
    def _template(self) -> Template | None:
        """The compiled chat template; None without one.

        It is set up as in transformers: a sandbox with the functions that templates call (``tojson``, ``raise_exception``,
        ``strftime_now``) and the special tokens as variables. The date is a fixed one, so that prompts are the same in every
        boot of a run.
        """
        from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415 - an extra that other engines do without

        source = self._template_source()
        if source is None:
            return None
        # The options are those of transformers; autoescaping is for HTML.
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_raise_template_error, strftime_now=lambda _: _TODAY, **self._special_tokens())
        return environment.from_string(source)

    def _template_source(self) -> str | None:
        """Return the text of the chat template; None without one.

        ``chat_template.jinja`` comes first, then ``tokenizer_config.json``. If that lists several templates by name, the one
        called ``default`` is returned.
        """
        file = self._folder / "chat_template.jinja"
        if file.is_file():
            return file.read_text("utf-8")
        template = self._settings.get("chat_template")
        if isinstance(template, list):
            template = next(
                (entry.get("template") for entry in template if isinstance(entry, Mapping) and entry.get("name") == "default"), None
            )
        return template if isinstance(template, str) else None

    def _special_tokens(self) -> dict[str, JSON]:
        """Return the texts of special tokens; empty for a missing one."""
        tokens = {name: self._settings.get(name) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
        return {name: token.get("content") if isinstance(token, Mapping) else token or "" for name, token in tokens.items()}


def _read_json_object(path: Path) -> Mapping[str, JSON]:
    """Return the JSON object in a file; empty without one."""
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, Mapping) else {}


def _clean_up_spaces(name: str) -> str:
    """Return a token's text cleaned up as transformers does."""
    for spaced in _UNSPACED:
        name = name.replace(spaced, spaced.strip())
    return name


def _to_json(value: JSON, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_template_error(message: str) -> None:
    raise ValueError(message)
