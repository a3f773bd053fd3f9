"""Parsing: a body of OpenAI's completions or chat route, in vLLM's dialect, becomes a request of the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_specdec.model.grammar import GrammarKind
from pytest_specdec.model.workload import Route
from specdec_reference import message_parts, reasoning, rules, structured_fields, tool_fields
from specdec_reference.request_fields import Fields, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_specdec.model.workload import JSON
    from specdec_reference.images import Patch
    from specdec_reference.tokenizer import Tokenizer
    from specdec_reference.tool_fields import ToolOffer


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One validated request; every value is one the engine honours."""

    prompt: tuple[int, ...]
    max_tokens: int
    adapter: str = ""
    """Name of the adapter that answers it; empty for the model alone."""
    patches: tuple[Patch, ...] = ()
    """Of its images, each in place of a placeholder of the prompt."""
    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0 is off."""
    top_p: float = 1.0
    min_p: float = 0.0
    """Least probability of a token, as a share of the most probable one's; 0 is off."""
    presence_penalty: float = 0.0
    """Nats taken from the logit of every token that the answer already holds."""
    frequency_penalty: float = 0.0
    """Nats taken from the logit of a token for each time that the answer already holds it."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of every token that prompt or answer already hold."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token, nats added to its logit), each token once."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Tokens of words of which no answer completes one."""
    allowed_token_ids: tuple[int, ...] | None = None
    """The only tokens that an answer may hold; None for all."""
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    include_stop: bool = False
    """Whether what ended the answer, a stop string or a token, stays in its text."""
    min_tokens: int = 0
    """Tokens before which only a limit ends the answer."""
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    """Whether special tokens have no text."""
    logprobs: int | None = None
    """Most probable tokens reported with each emitted one; None for no log-probabilities at all."""
    prompt_logprobs: int | None = None
    echo: bool = False
    """Whether the answer begins with its prompt, in text and log-probabilities."""
    grammar: str | None = None
    """A grammar for llguidance, which every emitted token keeps, after the reasoning where there is some."""
    reasons: bool = False
    """Whether reasoning is separated from the text, where the server was started so."""
    thinking_tokens: int | None = None
    """Tokens of reasoning after which its end is forced; None for no such limit."""
    tools: ToolOffer | None = None
    """The tools that may be called; None where text that looks like a call is text."""
    stream: bool = False
    include_usage: bool = False
    return_token_ids: bool = False
    tokens_as_ids: bool = False
    """Whether reported log-probabilities name tokens ``token_id:7`` instead of by text."""

    @property
    def penalised(self) -> bool:
        """True if penalties, biases, bans or allowed tokens change the logits."""
        added = self.presence_penalty or self.frequency_penalty or self.logit_bias
        return bool(added or self.bad_words) or self.repetition_penalty != 1.0 or self.allowed_token_ids is not None


_BOTH: Final = frozenset({
    "allowed_token_ids", "bad_words", "frequency_penalty", "ignore_eos", "include_stop_str_in_output", "logit_bias", "logprobs",
    "max_tokens", "min_p", "min_tokens", "model", "n", "presence_penalty", "prompt_logprobs", "repetition_penalty", "response_format",
    "return_token_ids", "return_tokens_as_token_ids", "seed", "skip_special_tokens", "stop", "stop_token_ids", "stream",
    "stream_options", "temperature", "top_k", "top_p", "user",
    *structured_fields.NAMES,
})  # fmt: skip
_KNOWN: Final = {
    Route.COMPLETIONS: _BOTH | {"echo", "prompt"},
    Route.CHAT: _BOTH | {"messages", "max_completion_tokens", "top_logprobs", *reasoning.NAMES, *tool_fields.NAMES},
}
_NEUTRAL: Final[Mapping[str, tuple[JSON, ...]]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (True, False),
    "best_of": (1,),
    "length_penalty": (1,),
    "spaces_between_special_tokens": (True, False),
    "suffix": ("",),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}
"""Fields that are taken only with null or one of these values, with which they change nothing."""
_MESSAGE: Final = {"role", "content", "name", "tool_calls", "tool_call_id"}
_MOST_CHOICES: Final = 256
_MOST_STOPS: Final = 16
_MOST_PENALTY: Final = 2.0
_MOST_BIAS: Final = 100.0
_MOST_REPETITION: Final = 100.0
_MOST_WORDS: Final = 64
_GREEDY_BELOW: Final = 1e-5  # vLLM's own bound
_DEFAULT_MAX_TOKENS: Final = 16  # of OpenAI's completions route


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """The limits of a server."""

    model: str
    max_model_len: int
    max_logprobs: int
    prompt_logprobs: bool
    token_prompts: bool
    """Whether a prompt may be a list of token ids."""
    grammar: Callable[[GrammarKind, JSON], str]
    """From a kind of grammar and its specification to what the engine runs; raises ValueError."""
    adapters: tuple[str, ...] = ()
    """Names of adapters, which ``model`` may give too."""
    fits: Callable[[int, int, int], bool] = rules.fits
    """Whether prompt and answer, in tokens, fit the context."""
    images: bool = False
    """Whether a message may hold images."""
    reasoning: bool = False
    """Whether answers may begin with reasoning, so that it can be limited."""


def parse(route: Route, body: JSON, tokenizer: Tokenizer, limits: ServerLimits) -> EngineRequest:
    """Return the request of a JSON body; raise Refusal, answered by a 4xx, for any other."""
    if not isinstance(body, dict):
        raise Refusal(message="the body must be a JSON object")
    fields = Fields(body)
    model = fields.text("model")
    adapter = model if model is not None and model in limits.adapters else ""
    if model is not None and not adapter and model != limits.model:
        raise Refusal(message=f"The model `{model}` does not exist.", param="model", status=404)
    fields.refuse_unknown(_KNOWN[route], _NEUTRAL)
    prompt = _parse_prompt(fields, tokenizer, limits) if route is Route.COMPLETIONS else _parse_conversation(fields, tokenizer, limits)
    tools = tool_fields.offer(fields) if route is Route.CHAT else None
    temperature = fields.number("temperature", 1.0, low=0.0, high=100.0)
    top_k = fields.integer("top_k", low=-1) or 0
    request = EngineRequest(
        prompt=prompt,
        max_tokens=_parse_max_tokens(route, fields, len(prompt), limits),
        adapter=adapter,
        patches=message_parts.patches(fields.value("messages"), prompt, tokenizer) if limits.images else (),
        temperature=temperature if temperature >= _GREEDY_BELOW else 0.0,
        top_k=max(top_k, 0),
        top_p=_parse_top_p(fields),
        min_p=fields.number("min_p", 0.0, low=0.0, high=1.0),
        presence_penalty=fields.number("presence_penalty", 0.0, low=-_MOST_PENALTY, high=_MOST_PENALTY),
        frequency_penalty=fields.number("frequency_penalty", 0.0, low=-_MOST_PENALTY, high=_MOST_PENALTY),
        repetition_penalty=_parse_repetition_penalty(fields),
        logit_bias=_parse_logit_bias(fields, tokenizer.vocabulary),
        bad_words=_parse_bad_words(fields, tokenizer),
        allowed_token_ids=_parse_allowed_ids(fields, tokenizer.vocabulary),
        seed=fields.integer("seed", low=-(2**63), high=2**63 - 1),
        n=fields.integer("n", low=1, high=_MOST_CHOICES) or 1,
        stop=fields.strings("stop", most=_MOST_STOPS),
        stop_ids=_parse_stop_ids(fields, tokenizer.vocabulary),
        include_stop=fields.flag("include_stop_str_in_output"),
        min_tokens=fields.integer("min_tokens", low=0) or 0,
        ignore_eos=fields.flag("ignore_eos"),
        skip_special_tokens=fields.flag("skip_special_tokens", default=True),
        logprobs=_parse_logprobs(route, fields, limits),
        prompt_logprobs=_parse_prompt_logprobs(route, fields, limits),
        echo=route is Route.COMPLETIONS and fields.flag("echo"),
        grammar=structured_fields.grammar(fields, limits.grammar) if tools is None else _compile_grammar(fields, tools, tokenizer, limits),
        reasons=route is Route.CHAT and reasoning.parse_thinking(fields),
        thinking_tokens=reasoning.parse_budget(fields, reasons=limits.reasoning) if route is Route.CHAT else None,
        tools=None if tools is None or tools.choice == "none" else tools,
        stream=fields.flag("stream"),
        include_usage=_parse_include_usage(fields),
        return_token_ids=fields.flag("return_token_ids"),
        tokens_as_ids=fields.flag("return_tokens_as_token_ids"),
    )
    _refuse_combinations(request)
    return request


def prompt_of(body: JSON, tokenizer: Tokenizer, limits: ServerLimits) -> tuple[int, ...]:
    """Return the token ids of a body's prompt.

    The prompt's field decides the route: ``messages`` is chat, ``prompt`` is completions. Raises Refusal.
    """
    if not isinstance(body, dict):
        raise Refusal(message="the body must be a JSON object")
    fields = Fields(body)
    return (_parse_conversation if "messages" in body else _parse_prompt)(fields, tokenizer, limits)


def _refuse_combinations(request: EngineRequest) -> None:
    """Raise Refusal for values at odds with one another."""
    if request.min_tokens > request.max_tokens:
        message = f"min_tokens must be less than or equal to max_tokens={request.max_tokens}, got {request.min_tokens}."
        raise Refusal(message=message, param="min_tokens")
    if request.n > 1 and request.temperature == 0:
        raise Refusal(message="n must be 1 when using greedy sampling", param="n")
    if request.echo and (request.stream or request.n > 1):
        raise Refusal(message="echo is available for one choice, not streamed", param="echo")
    if request.stream and request.prompt_logprobs is not None:
        raise Refusal(message="prompt_logprobs are not available when stream is true", param="prompt_logprobs")
    if request.include_usage and not request.stream:
        raise Refusal(message="stream_options are for stream: true", param="stream_options")


def _parse_prompt(fields: Fields, tokenizer: Tokenizer, limits: ServerLimits) -> tuple[int, ...]:
    """Return the ids of a text or an id list.

    Raises Refusal for any other prompt.
    """
    prompt = fields.value("prompt")
    # A list of one prompt stands for that prompt.
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return _require_tokens(tokenizer.encode(prompt), "prompt")
    if not isinstance(prompt, list):
        raise Refusal(message="prompt must be a string or a list of token ids", param="prompt")
    if not limits.token_prompts:
        raise Refusal(message="prompts are text here: the server was started with --no-token-prompts", param="prompt")
    ids = tuple(i for i in prompt if isinstance(i, int) and not isinstance(i, bool))
    if len(ids) != len(prompt):
        raise Refusal(
            message="prompt must be one string or one list of token ids; several prompts in one request are not supported", param="prompt"
        )
    unknown_ids = [i for i in ids if not 0 <= i < tokenizer.vocabulary]
    if unknown_ids:
        raise Refusal(message=f"Token id {unknown_ids[0]} is out of vocabulary (0 to {tokenizer.vocabulary - 1})", param="prompt")
    return _require_tokens(ids, "prompt")


def _parse_conversation(fields: Fields, tokenizer: Tokenizer, limits: ServerLimits) -> tuple[int, ...]:
    """Return the ids of a chat's prompt.

    Raises Refusal for messages that the server or the chat template does not take.
    """
    messages = fields.value("messages")
    if not isinstance(messages, list) or not messages:
        raise Refusal(message="messages must be a list that is not empty", param="messages")
    try:
        text = tokenizer.format_chat([_parse_message(message, limits) for message in messages], tool_fields.instructions(fields))
    except ValueError as error:
        raise Refusal(message=str(error), param="messages") from error
    return _require_tokens(tokenizer.encode(text), "messages")


def _parse_message(message: JSON, limits: ServerLimits) -> dict[str, str]:
    """Return a message's role and text, tool calls as text.

    An image part becomes its placeholder if the server takes images. Raises Refusal for a message in another form.
    """
    if not isinstance(message, dict) or not set(message) <= _MESSAGE:
        raise Refusal(message="a message must be an object with role, content and tool calls only", param="messages")
    role, content = message.get("role"), message.get("content")
    if "tool_calls" in message and role != "assistant":
        raise Refusal(message="only the assistant calls tools", param="messages")
    if isinstance(content, list):
        content = "".join(message_parts.text(part, images=limits.images) for part in content)
    calls = tool_fields.calls_text(message)
    if calls and (content is None or isinstance(content, str)):
        content = f"{content}\n{calls}" if content else calls
    if not isinstance(role, str) or not isinstance(content, str):
        raise Refusal(message="a message must have a role and a text", param="messages")
    return {"role": role, "content": content}


def _require_tokens(ids: tuple[int, ...], param: str) -> tuple[int, ...]:
    """Return ``ids``, or raise Refusal where there are none."""
    if not ids:
        raise Refusal(message="the prompt has no tokens", param=param)
    return ids


def _parse_max_tokens(route: Route, fields: Fields, prompt_tokens: int, limits: ServerLimits) -> int:
    """Return the limit of the answer, in tokens.

    Without one it is 16 for a completion, and what the context leaves for a chat. Raises Refusal where prompt and
    answer do not fit the context.
    """
    room = limits.max_model_len - prompt_tokens
    limit = fields.integer("max_tokens", low=1)
    if route is Route.CHAT:
        limit = fields.integer("max_completion_tokens", low=1) or limit or room
    limit = _DEFAULT_MAX_TOKENS if limit is None else limit
    if room < 1 or not limits.fits(prompt_tokens, limit, limits.max_model_len):
        raise Refusal(
            message=f"This model's maximum context length is {limits.max_model_len} tokens. However, you requested "
            f"{max(limit, 1)} output tokens "
            f"and your prompt contains {prompt_tokens} input tokens. Please reduce the length of the input prompt or the number of "
            "requested output tokens.",
            param="max_tokens",
        )
    return limit


def _parse_top_p(fields: Fields) -> float:
    top_p = fields.number("top_p", 1.0, low=0.0, high=1.0)
    if top_p == 0:
        raise Refusal(message="top_p must be above 0", param="top_p")
    return top_p


def _parse_stop_ids(fields: Fields, vocabulary: int) -> tuple[int, ...]:
    """Return the ids of ``stop_token_ids``, empty without any; raise Refusal for unknown ones."""
    value = fields.value("stop_token_ids") or []
    ids = tuple(i for i in value if isinstance(i, int) and not isinstance(i, bool)) if isinstance(value, list) else None
    if ids is None or not isinstance(value, list) or len(ids) != len(value):
        raise Refusal(message="stop_token_ids must be a list of token ids", param="stop_token_ids")
    unknown_ids = [i for i in ids if not 0 <= i < vocabulary]
    if unknown_ids:
        message = f"stop_token_ids has token id {unknown_ids[0]}, which is out of vocabulary (0 to {vocabulary - 1})"
        raise Refusal(message=message, param="stop_token_ids")
    return ids


def _parse_repetition_penalty(fields: Fields) -> float:
    penalty = fields.number("repetition_penalty", 1.0, low=0.0, high=_MOST_REPETITION)
    if penalty == 0:
        raise Refusal(message="repetition_penalty must be above 0", param="repetition_penalty")
    return penalty


def _parse_bad_words(fields: Fields, tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of each word, plain and after a space.

    The form after a space is listed where it has as many tokens and another first token. So does vLLM
    (``SamplingParams.update_from_tokenizer``): a word inside a text has a token of its own with the space in
    it.
    """
    words: list[tuple[int, ...]] = []
    for word in fields.strings("bad_words", most=_MOST_WORDS):
        plain, spaced = tokenizer.encode(word.lstrip()), tokenizer.encode(" " + word.lstrip())
        words += [plain, *([spaced] if plain and spaced[0] != plain[0] and len(spaced) == len(plain) else [])]
    return tuple(filter(None, words))


def _parse_allowed_ids(fields: Fields, vocabulary: int) -> tuple[int, ...] | None:
    """Return the token ids of ``allowed_token_ids``.

    None for no restriction. Raises Refusal for anything but a list of ids in the vocabulary, and for an empty one.
    """
    value = fields.value("allowed_token_ids")
    if value is None:
        return None
    ids = tuple(i for i in value if isinstance(i, int) and not isinstance(i, bool)) if isinstance(value, list) else ()
    if not ids or not isinstance(value, list) or len(ids) != len(value):
        raise Refusal(message="allowed_token_ids must be a list of token ids that is not empty", param="allowed_token_ids")
    unknown_ids = [i for i in ids if not 0 <= i < vocabulary]
    if unknown_ids:
        message = f"allowed_token_ids has token id {unknown_ids[0]}, which is out of vocabulary (0 to {vocabulary - 1})"
        raise Refusal(message=message, param="allowed_token_ids")
    return ids


def _parse_logit_bias(fields: Fields, vocabulary: int) -> tuple[tuple[int, float], ...]:
    """Return (token, bias) of every biased token; empty without any.

    Raises Refusal for a key that is no id in the vocabulary, and for a bias beyond 100.
    """
    bias_by_id_text = fields.numbers("logit_bias", low=-_MOST_BIAS, high=_MOST_BIAS)
    try:
        biases = {int(name): bias for name, bias in bias_by_id_text.items()}
    except ValueError as error:
        raise Refusal(message=f"logit_bias has a key that is no token id: {error}", param="logit_bias") from error
    unknown_ids = [token for token in biases if not 0 <= token < vocabulary]
    if unknown_ids:
        raise Refusal(
            message=f"logit_bias has token id {unknown_ids[0]}, which is out of vocabulary (0 to {vocabulary - 1})", param="logit_bias"
        )
    return tuple(biases.items())


def _parse_logprobs(route: Route, fields: Fields, limits: ServerLimits) -> int | None:
    """Return the number of top tokens to report with each emitted one.

    None for no log-probabilities at all. Raises Refusal for more than the server allows.
    """
    if route is Route.COMPLETIONS:
        return _parse_reported_count(fields, "logprobs", limits)
    top = _parse_reported_count(fields, "top_logprobs", limits)
    if not fields.flag("logprobs"):
        if top:
            raise Refusal(message="top_logprobs needs logprobs: true", param="top_logprobs")
        return None
    return top or 0


def _parse_reported_count(fields: Fields, name: str, limits: ServerLimits) -> int | None:
    return fields.integer(name, low=0, high=limits.max_logprobs)


def _parse_prompt_logprobs(route: Route, fields: Fields, limits: ServerLimits) -> int | None:
    """Return the number of top tokens to report for the prompt.

    An echoed prompt gets as many as the answer, unless the request sets ``prompt_logprobs``. None for no report. Raises
    Refusal where the server reports none, or fewer.
    """
    top = _parse_reported_count(fields, "prompt_logprobs", limits)
    if top is None and route is Route.COMPLETIONS and fields.flag("echo"):
        top = _parse_reported_count(fields, "logprobs", limits)
    if top is not None and not limits.prompt_logprobs:
        raise Refusal(
            message="prompt_logprobs are not served here: the server was started with --no-prompt-logprobs", param="prompt_logprobs"
        )
    return top


def _parse_include_usage(fields: Fields) -> bool:
    """Return True if a stream ends with its usage; raise Refusal for other options of it."""
    options = fields.object("stream_options")
    if options is None:
        return False
    option_fields = Fields(options)
    try:
        option_fields.refuse_unknown({"include_usage"}, {"continuous_usage_stats": (False,)})
        return option_fields.flag("include_usage")
    except Refusal as refusal:
        raise Refusal(message=f"stream_options: {refusal.message}", param="stream_options") from refusal


def _compile_grammar(fields: Fields, tools: ToolOffer, tokenizer: Tokenizer, limits: ServerLimits) -> str | None:
    """Return the compiled grammar of required tool calls.

    Where no call is required it is that of fields as ``response_format``, or None. Raises Refusal for one that cannot be
    compiled.
    """
    lark = tool_fields.lark(tools, tokens=tokenizer.tool_tokens)
    if not lark:
        return structured_fields.grammar(fields, limits.grammar)
    try:
        return limits.grammar(GrammarKind.GRAMMAR, lark)
    except ValueError as error:
        raise Refusal(message=f"the parameters of a tool cannot be compiled: {error}", param="tools") from error
