"""The tokenizer: other kinds are refused, a template may refuse a conversation, words decode as the tokenizer decodes."""

from __future__ import annotations

import pytest

from pytest_specdec.errors import EngineError
from specdec_reference import checkpoint
from specdec_reference.tokenizer import Tokenizer
from tests.reference.test_checkpoint import changed


def test_another_kind_of_tokenizer_is_refused(tmp_path):
    folder = changed(tmp_path, "tokenizer.json", lambda t: t.update(decoder={"type": "WordPiece"}))
    with pytest.raises(EngineError, match="ByteLevel"):
        Tokenizer(folder, 4096)


def test_a_checkpoint_without_a_template_refuses_conversations_only(tmp_path):
    folder = changed(tmp_path, "config.json", lambda _: None)
    (folder / "chat_template.jinja").unlink()
    tokenizer = Tokenizer(folder, 4096)
    assert tokenizer.encode("def")
    with pytest.raises(ValueError, match="no chat template"):
        tokenizer.format_chat([{"role": "user", "content": "x"}])


def test_a_template_that_raises_refuses_the_messages(tmp_path):
    folder = changed(tmp_path, "config.json", lambda _: None)
    (folder / "chat_template.jinja").write_text("{{ messages.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(ValueError, match="refuses these messages"):
        Tokenizer(folder, 4096).format_chat([])


def test_words_decode_as_the_tokenizer_decodes():
    tokenizer = Tokenizer(checkpoint.locate("target"), 4096)
    text = "naïve «déjà vu» 你好 🙂\n\tx"
    ids = tokenizer.encode(text)
    assert b"".join(tokenizer.pieces[i] for i in ids).decode() == text
    assert tokenizer._encoder.decode(ids) == text
    assert (tokenizer.words[1], tokenizer.pieces[1]) == ("<|im_start|>", b"")
