"""A server in vLLM's dialect with a model of three lines, which misbehaves as its arguments say."""

# ruff: noqa: T201 - a log is what it prints

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--host", default="127.0.0.1")
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--speculative-config")
parser.add_argument("--boot", choices=["well", "die", "never", "refuse"], default="well")
parser.add_argument("--ignore-sigterm", action="store_true")
parser.add_argument("--grandchild", choices=["in-session", "own-session"])
parser.add_argument("--engine-core", action="store_true", help="a child that dies of --kill-core-on and takes the server with it")
parser.add_argument("--kill-core-on", default="")
parser.add_argument("--die-on", default="")
parser.add_argument("--exit-after", default="", help="exit with code 3 after the answer to a prompt with this word")
parser.add_argument("--hang-on", default="")
parser.add_argument("--break-on", default="", help="answer 500")
parser.add_argument("--refuse-on", default="", help="answer 400")
parser.add_argument("--turn-away-on", default="", help="answer --turn-away from the first prompt with this word on, whatever is asked")
parser.add_argument("--turn-away-chat", action="store_true", help="from then on turn away conversations alone")
parser.add_argument("--only-completions", action="store_true", help="answer 400 to every conversation")
parser.add_argument("--turn-away", type=int, default=401, help="a status")
parser.add_argument("--turn-away-times", type=int, default=0, help="answer so to prompts with that word alone, and to so many of them")
parser.add_argument("--refuse-fields", default="", help="answer 400 to a body with one of these")
parser.add_argument("--garble-on", default="", help="answer 200 with something that is no JSON")
parser.add_argument("--cut-on", default="", help="end the stream before its end")
parser.add_argument("--fail-stream-on", default="", help="report an error inside the stream")
parser.add_argument("--only-once", help="a file: misbehave only while it does not exist")
parser.add_argument("--every-time", default="", help="a word to misbehave on each time, whatever --only-once says")
parser.add_argument("--company", type=int, default=1, help="misbehave only with so many requests of that word in flight")
parser.add_argument("--numbers", default="", help="misbehave only on these requests of that word, from 1, over all starts: 3,9")
parser.add_argument("--tally", help="a file with a byte per request of that word, for --numbers")
parser.add_argument("--hang-healthy", action="store_true", help="answer /health and nothing else")
parser.add_argument("--raw-on", default="", help="send the bytes of --raw in place of a response")
parser.add_argument("--raw", help="a file")
parser.add_argument("--metrics", help="a file with the page of counters")
parser.add_argument("--say", default="", help="a line for the log")
parser.add_argument("--say-on", default="", help="write it for each request with this word")
parser.add_argument("--no-token-ids", action="store_true")
parser.add_argument("--no-prompt-logprobs", action="store_true")
parser.add_argument("--top-logprobs", action="store_true", help="list the most probable tokens beside log-probabilities, by id")
parser.add_argument("--ignore-ids", action="store_true", help="answer every prompt of token ids as if it were another one")
parser.add_argument("--processed-logprobs", action="store_true", help="report log-probabilities after temperature")
parser.add_argument("--die-on-scoring", action="store_true")
parser.add_argument("--hang-get", default="", help="never answer a GET of one of these paths: /metrics,/health")
parser.add_argument("--hang-on-scoring", action="store_true")
parser.add_argument("--reasoning", default="", help="the name under which chat answers give the beginning of their text")
parser.add_argument("--reasoning-tokens", type=int, default=3, help="how long that is")
parser.add_argument("--slow", type=float, default=0.0, help="seconds per answer")
parser.add_argument("--max-model-len", type=int, help="tell it in the card of the model")
parser.add_argument("--served-version", default="1.2.3")
parser.add_argument("--print-secrets", action="store_true")
parser.add_argument("--count-prompts", action="store_true", help="count a prompt token per request in the file of --metrics")
parser.add_argument("--key", help="what clients have to bring")
parser.add_argument("--no-such-endpoint", action="store_true", help="answer 404 to every prompt")
parser.add_argument("--models", default="fake-model", help="the names that are served: a,b")
parser.add_argument("--models-on", default="", help="serve --models-later from the first prompt with this word on")
parser.add_argument("--models-later", default="", help="the names that are served then")
parser.add_argument("--page-of-models", help="a file with what /v1/models answers")
parser.add_argument("--template", default="", help="what comes before every prompt")
options = parser.parse_args()

COUNTERS = {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}
VOCABULARY = 40
flying, flying_lock = [], threading.Lock()
turned_away = []


def next_token(ids):
    return (3 * ids[-1] + len(ids)) % VOCABULARY


def distribution(ids):
    best = next_token(ids)
    return {best: -0.1, (best + 1) % VOCABULARY: -2.5, (best + 2) % VOCABULARY: -4.0}


def misbehave(text):
    if options.say and options.say_on in text:
        print(options.say, flush=True)
    once = options.only_once and Path(options.only_once)
    for word, how in ((options.die_on, die), (options.hang_on, hang), (options.kill_core_on, kill_core), (options.break_on, broken)):
        spent = once and once.exists() and word != options.every_time
        if word and word in text and not spent and in_company(word) and its_number():
            if once and word != options.every_time:
                once.touch()
            return how()
    return False


def count_prompt():
    if not options.count_prompts:
        return
    path = Path(options.metrics)
    name, _, count = path.read_text().partition("prompt_tokens_total ")
    path.write_text(f"{name}prompt_tokens_total {int(count.split()[0]) + 1}\n")


def in_company(word):
    with flying_lock:
        return sum(word in text for text in flying) >= options.company


def its_number():
    if not options.numbers:
        return True
    with flying_lock, Path(options.tally).open("ab") as file:
        file.write(b".")
        file.flush()
        return str(file.tell()) in options.numbers.split(",")


def turns_away(text):
    word, times = options.turn_away_on, options.turn_away_times
    with flying_lock:
        is_meant = bool(word) and (word in text or bool(turned_away and not times))
        turned_away.extend([text] * is_meant)
        return is_meant and (not times or len(turned_away) <= times)


def refusal(text, body):
    """Return the status and the words of what is refused; None for what is answered."""
    if options.only_completions and "messages" in body:
        return 400, "bad request"
    if not (options.turn_away_chat and "messages" not in body) and turns_away(text):
        return options.turn_away, "who are you?"
    if any(field in body for field in options.refuse_fields.split(",")):
        return 400, "no such field"
    if (options.refuse_on and options.refuse_on in text) or options.boot == "refuse":
        return 400, "not supported"
    return None


def broken():
    return True


def kill_core():
    core.kill()
    core.wait()
    threading.Timer(0.5, lambda: os._exit(0)).start()
    return True


def die():
    print("something terrible happened", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def exit_if_meant(text):
    if options.exit_after and options.exit_after in text:
        print("out of memory", flush=True)
        os._exit(3)


def hang():
    time.sleep(3600)


def steps(tokens):
    """Cut what follows the prefill's token into windows of 3 and 1 in turn, as if 2 and then 0 of 3 drafts were accepted."""
    accepted, left = [], tokens - 1
    while left > 0:
        accepted.append(2 if len(accepted) % 2 == 0 else 0)
        left -= accepted[-1] + 1
    return accepted


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body, kind="application/json"):
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def denied(self):
        if options.no_such_endpoint and self.command == "POST":
            self.reply(404, {"error": {"message": "not found", "code": 404}})
            return True
        if options.key is None or self.headers.get("Authorization") == f"Bearer {options.key}":
            return False
        self.reply(401, {"error": {"message": "no such key", "code": 401}})
        return True

    def do_GET(self):
        if self.path.startswith("/v1") and self.denied():
            return
        if self.path in options.hang_get.split(","):
            hang()
        if self.path == "/metrics" and options.metrics:
            self.reply(200, Path(options.metrics).read_text(), "text/plain")
        elif self.path == "/metrics":
            lines = [f'vllm:spec_decode_num_{name}_total{{engine="0"}} {value}.0' for name, value in COUNTERS.items()]
            self.reply(200, "\n".join(lines if options.speculative_config else []), "text/plain")
        elif self.path in {"/health", "/version"}:
            self.reply(200, {"version": options.served_version})
        elif options.page_of_models and self.path == "/v1/models":
            self.reply(200, Path(options.page_of_models).read_text())
        else:
            more = {"max_model_len": options.max_model_len} if options.max_model_len else {}
            self.reply(200, {"data": [{"id": name, **more} for name in options.models.split(",")]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return None if self.denied() else self.prompted(body)

    def prompted(self, body):
        if options.hang_healthy:
            hang()
        chat = self.path.endswith("chat/completions")
        prompt = body["messages"][-1]["content"] if chat else body["prompt"]
        if isinstance(prompt, list) and options.die_on_scoring:
            die()
        if isinstance(prompt, list) and options.hang_on_scoring:
            hang()
        text = prompt if isinstance(prompt, str) else ""
        print("asked", text[:40], flush=True)
        if options.models_on and options.models_on in text:
            options.models = options.models_later
        with flying_lock:
            flying.append(text)
            count_prompt()
        try:
            is_broken = misbehave(text) or (core and core.poll() is not None)
            time.sleep(options.slow if text.startswith("p") else 0.0)
        finally:
            with flying_lock:
                flying.remove(text)
        if is_broken:
            return self.reply(500, {"error": {"message": "internal failure", "code": 500}})
        if any(word and word in text for word in (options.raw_on, options.garble_on)):
            return self.malformed()
        if refused := refusal(text, body):
            return self.reply(refused[0], {"error": {"message": refused[1], "code": refused[0]}})
        self.cut = bool(options.cut_on) and options.cut_on in text
        self.fail = bool(options.fail_stream_on) and options.fail_stream_on in text
        ids = list(prompt) if isinstance(prompt, list) else [b % VOCABULARY for b in (options.template + prompt).encode()]
        self.answer(body, chat, [5] if options.ignore_ids and isinstance(prompt, list) else ids)
        exit_if_meant(text)
        return None

    def malformed(self):
        if not options.raw:
            return self.reply(200, "<html>")
        self.wfile.write(Path(options.raw).read_bytes())
        self.close_connection = True
        return None

    def answer(self, body, chat, ids):
        tokens, ids, distributions = [], list(ids), []
        prompt = list(ids)
        for _ in range(body.get("max_tokens", 4)):
            distributions.append(distribution(ids))
            tokens.append(next_token(ids))
            ids.append(tokens[-1])
        choice = {"index": 0, "finish_reason": "length"}
        if not options.no_token_ids:
            choice["token_ids"] = tokens
        if body.get("logprobs"):
            processed = options.processed_logprobs and body.get("temperature") != 1.0
            choice["logprobs"] = {"token_logprobs": [-0.03 if processed else -0.1] * len(tokens)}
            if options.top_logprobs:
                choice["logprobs"]["top_logprobs"] = [{f"token_id:{t}": p for t, p in known.items()} for known in distributions]
        if "prompt_logprobs" in body and not options.no_prompt_logprobs:
            choice["prompt_logprobs"] = [None] + [self.entry(prompt, i, body["prompt_logprobs"]) for i in range(1, len(prompt))]
        whole = {"usage": {"prompt_tokens": len(prompt), "completion_tokens": len(tokens)}}
        reasoned = self.reasoned(chat, tokens, whole["usage"])
        if options.speculative_config:
            accepted = steps(len(tokens))
            COUNTERS["drafts"] += len(accepted)
            COUNTERS["draft_tokens"] += 3 * len(accepted)
            COUNTERS["accepted_tokens"] += sum(accepted)
            whole["metrics"] = {"speculative_decoding": {"per_step_accepted": accepted, "per_step_drafted": [3] * len(accepted)}}
        if body.get("stream"):
            return self.stream(chat, prompt, tokens, whole, reasoned)
        text = "".join(chr(97 + t % 26) for t in tokens)
        reasoning = {options.reasoning: text[:reasoned]} if reasoned else {}
        message = {"role": "assistant", "content": text[reasoned:], **reasoning}
        choice |= {"message": message} if chat else {"text": text, "prompt_token_ids": prompt}
        return self.reply(200, {"choices": [choice], "prompt_token_ids": prompt, **whole})

    @staticmethod
    def reasoned(chat, tokens, usage):
        count = min(options.reasoning_tokens, len(tokens)) if chat and options.reasoning else 0
        if count:
            usage["completion_tokens_details"] = {"reasoning_tokens": count}
        return count

    @staticmethod
    def entry(prompt, i, top):
        known = distribution(prompt[:i])
        kept = dict(sorted(known.items(), key=lambda item: -item[1])[:top])
        kept[prompt[i]] = known.get(prompt[i], -9.0)
        return {str(token): {"logprob": logprob, "rank": rank + 1} for rank, (token, logprob) in enumerate(kept.items())}

    def stream(self, chat, prompt, tokens, whole, reasoned):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        chunks = []
        for i, token in enumerate(tokens):
            letter = chr(97 + token % 26)
            said = {"delta": {options.reasoning if i < reasoned else "content": letter}} if chat else {"text": letter}
            end = "length" if i + 1 == len(tokens) else None
            chunks.append(
                {
                    "choices": [{"index": 0, "token_ids": [token], "finish_reason": end, **said}],
                    "prompt_token_ids": prompt if not i else None,
                }
            )
        if self.fail:
            chunks[1:] = [{"error": {"message": "engine failed", "code": 500}}]
        for chunk in [*chunks, {"choices": [], **whole}]:
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
            self.wfile.flush()
        if not self.cut:
            self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True


print("booting", options.model, flush=True)
if options.print_secrets:
    print("the key is", os.environ.get("VLLM_API_KEY"), flush=True)
if options.ignore_sigterm:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
core = None
if options.engine_core:
    core = subprocess.Popen(["VLLM::EngineCore", "-c", "import time; time.sleep(3600)"], executable=sys.executable)
if options.grandchild:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=options.grandchild == "own-session")
if options.boot == "die":
    print("no such model", flush=True)
    sys.exit(3)
if options.boot == "never":
    time.sleep(3600)
ThreadingHTTPServer.request_queue_size = 128  # of 5, as it is, 32 clients at once fill it, and one waits a second to connect again
server = ThreadingHTTPServer((options.host, options.port), Handler)
server.daemon_threads = True
print("ready", flush=True)
server.serve_forever()
