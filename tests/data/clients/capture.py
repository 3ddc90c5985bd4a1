"""Captures what real command-line clients send, for `tests/data/clients/`.

    python3 capture.py CLIENT PROGRAM [ADDRESS]

CLIENT is claude-code, codex or opencode, PROGRAM its executable as npm installed it. The script plays the model: it
answers the first request with a tool call and the second with a word, so that one run shows a first turn and a turn
with a tool's result in its history. With ADDRESS (a proxy in front of 127.0.0.1:9099) the client is pointed there.
Bodies are written beside this file with the long texts of their vendors replaced (see `scrub`); everything else, the
order of keys, white space, numbers and escapes, stays as it was sent.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HERE = os.path.dirname(os.path.abspath(__file__))
KEPT = ("host", "content-type", "accept", "accept-encoding", "user-agent", "anthropic-version", "anthropic-beta",
        "x-app", "openai-beta", "originator", "content-encoding", "expect", "transfer-encoding")
SEEN = []


def event(name, value):
    return f"event: {name}\ndata: {json.dumps(value)}\n\n" if name else f"data: {json.dumps(value)}\n\n"


def messages(second):
    usage = {"input_tokens": 10, "output_tokens": 1}
    yield event("message_start", {"type": "message_start", "message": {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None,
        "stop_sequence": None, "usage": usage}})
    if second:
        block, delta, why = {"type": "text", "text": ""}, {"type": "text_delta", "text": "done"}, "end_turn"
    else:
        block = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {}}
        delta = {"type": "input_json_delta", "partial_json": '{"command": "echo hello", "description": "say hello"}'}
        why = "tool_use"
    yield event("content_block_start", {"type": "content_block_start", "index": 0, "content_block": block})
    yield event("content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta})
    yield event("content_block_stop", {"type": "content_block_stop", "index": 0})
    yield event("message_delta", {"type": "message_delta", "delta": {"stop_reason": why, "stop_sequence": None},
                                  "usage": {"output_tokens": 9}})
    yield event("message_stop", {"type": "message_stop"})


def responses(second, body):
    names = [tool.get("name") for tool in body.get("tools", [])]
    if second:
        item = {"type": "message", "id": "i1", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": "done", "annotations": []}]}
    elif "shell" in names:
        item = {"type": "function_call", "id": "i1", "call_id": "c1", "name": "shell", "status": "completed",
                "arguments": json.dumps({"command": ["echo", "hello"]})}
    else:
        item = {"type": "function_call", "id": "i1", "call_id": "c1", "name": names[0] or "exec_command",
                "status": "completed", "arguments": json.dumps({"cmd": "echo hello", "command": "echo hello"})}
    base = {"id": "r1", "object": "response", "created_at": 0, "model": "m", "output": []}
    yield event("response.created", {"type": "response.created", "response": {**base, "status": "in_progress"}})
    yield event("response.output_item.done", {"type": "response.output_item.done", "output_index": 0, "item": item})
    usage = {"input_tokens": 10, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 1,
             "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 11}
    yield event("response.completed", {"type": "response.completed", "response": {
        **base, "status": "completed", "output": [item], "usage": usage}})


def chat(second, body):
    base = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    if second or not body.get("tools"):
        delta, why = {"role": "assistant", "content": "done"}, "stop"
    else:
        call = {"index": 0, "id": "call_1", "type": "function", "function": {
            "name": "bash", "arguments": '{"command": "echo hello", "description": "say hello"}'}}
        delta, why = {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
    yield event("", {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    yield event("", {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": why}]})
    yield event("", {**base, "choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}})
    yield "data: [DONE]\n\n"


class Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, kind, pieces):
        body = "".join(pieces).encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self):
        self.answer("text/plain", [])

    def do_GET(self):
        models = [{"id": "gpt-5", "object": "model", "created": 0, "owned_by": "o"}]
        self.answer("application/json", [json.dumps({"object": "list", "data": models, "models": []})])

    def do_POST(self):
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        path = self.path.split("?")[0]
        print(self.command, self.path, len(raw), file=sys.stderr)
        if not path.endswith(("/messages", "/responses", "/chat/completions")):
            return self.answer("application/json", ['{"input_tokens": 10}'])
        SEEN.append((self.requestline, list(self.headers.items()), raw))
        try:
            body = json.loads(raw)
        except ValueError:
            return self.answer("application/json", ["{}"])
        second = b"tool_result" in raw or b"function_call_output" in raw or b'"role":"tool"' in raw
        if path.endswith("/messages"):
            if not body.get("stream"):
                text = [{"type": "text", "text": "done"}]
                return self.answer("application/json", [json.dumps({
                    "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": text,
                    "stop_reason": "end_turn", "stop_sequence": None,
                    "usage": {"input_tokens": 1, "output_tokens": 1}})])
            pieces = messages(second or not body.get("tools"))
        elif path.endswith("/responses"):
            pieces = responses(second, body)
        else:
            pieces = chat(second, body)
        self.answer("text/event-stream", pieces)


def run(client, program, address, home):
    asked = "Run the command echo hello and tell me when it is done."
    env = {"PATH": os.environ["PATH"], "HOME": home, "TERM": "dumb", "LANG": "C.UTF-8", "XDG_CONFIG_HOME": f"{home}/.config",
           "XDG_DATA_HOME": f"{home}/.local", "XDG_CACHE_HOME": f"{home}/.cache"}
    work = os.path.join(home, "project")
    os.makedirs(work)
    if client == "claude-code":
        env |= {"ANTHROPIC_BASE_URL": f"http://{address}", "ANTHROPIC_API_KEY": "unused",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1", "DISABLE_TELEMETRY": "1"}
        command = [program, "-p", asked, "--allowedTools", "Bash(echo:*)", "--max-turns", "3"]
    elif client == "codex":
        os.makedirs(f"{home}/.codex")
        with open(f"{home}/.codex/config.toml", "w") as file:
            file.write(f'model = "gpt-5"\nmodel_provider = "mock"\n[model_providers.mock]\nname = "mock"\n'
                       f'base_url = "http://{address}/v1"\nwire_api = "responses"\nenv_key = "MOCK_KEY"\n')
        env |= {"MOCK_KEY": "unused", "CODEX_HOME": f"{home}/.codex"}
        command = [program, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", asked]
    else:
        os.makedirs(f"{home}/.config/opencode")
        provider = {"npm": "@ai-sdk/openai-compatible", "name": "mock",
                    "options": {"baseURL": f"http://{address}/v1", "apiKey": "unused"}, "models": {"m": {"name": "m"}}}
        with open(f"{home}/.config/opencode/opencode.json", "w") as file:
            json.dump({"$schema": "https://opencode.ai/config.json", "provider": {"mock": provider}, "autoupdate": False,
                       "share": "disabled", "model": "mock/m", "small_model": "mock/m"}, file)
        env |= {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
        command = [program, "run", asked]
    done = subprocess.run(command, env=env, cwd=work, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, text=True)
    print(done.returncode, done.stdout[-1500:], done.stderr[-3000:], file=sys.stderr)
    return done.returncode


FILLER = 'the quick brown fox jumps over a lazy dog, \\u00e9t\\u00e9 or \\"back\\"\\n'
LONG = 40


def scrub(raw, home):
    """Long strings become filler; ids, paths and names of this machine become others. JSON inside a string stays."""
    text = raw.decode()
    for name in (home, os.path.realpath(home), os.environ.get("HOME", home)):
        text = text.replace(name, "/srv/user")

    def short(found):
        inner, key = found.groups()
        return found.group(0) if key or len(inner) <= LONG or "echo hello" in inner or inner.startswith('{\\"') else f'"{FILLER}"'

    text = re.sub(r'"((?:[^"\\]|\\.)*)"(\s*:)?', short, text)
    nobody = "00000000-0000-4000-8000-000000000000"
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", nobody, text)
    return re.sub(r"[0-9a-f]{32,}", lambda found: "0" * len(found.group(0)), text).encode()


def main():
    client, program = sys.argv[1:3]
    server = ThreadingHTTPServer(("127.0.0.1", 9099), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as home:
        code = run(client, program, sys.argv[3] if len(sys.argv) > 3 else "127.0.0.1:9099", home)
        wanted = [entry for entry in SEEN if b'"tools"' in entry[2]]
        for number, (line, headers, raw) in enumerate(wanted[:2], 1):
            kept = "".join(f"{name}: {value}\r\n" for name, value in headers if name.lower() in KEPT
                           or name.lower().startswith("x-stainless"))
            body = scrub(raw, home)
            json.loads(body)
            name = os.path.join(HERE, f"{client}-{number}.http")
            with open(name, "wb") as file:
                file.write(f"{line}\r\n{kept}\r\n".encode() + body)
            print(name, len(raw), "->", len(body), file=sys.stderr)
    sys.exit(code)


main()
