// Aborts with an AbortController, before the first byte and in the middle of a stream, through both clients.
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const [base, api, phase] = process.argv.slice(2);
const controller = new AbortController();
const { signal } = controller;
const openai = new OpenAI({ baseURL: `${base}/v1`, apiKey: "unused", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: base, apiKey: "unused", maxRetries: 0 });
const messages = [{ role: "user", content: "hi" }];
const create = {
  chat: (ask) => openai.chat.completions.create({ messages, ...ask }, { signal }),
  responses: (ask) => openai.responses.create({ input: "hi", ...ask }, { signal }),
  messages: (ask) => anthropic.messages.create({ messages, max_tokens: 9, ...ask }, { signal }),
}[api];

process.stdin.on("data", () => controller.abort()); // the test says when the upstream has the request
try {
  if (phase === "whole") await create({ model: "silent" });
  else if (phase === "silent") await create({ model: "silent", stream: true });
  else {
    for await (const _ of await create({ model: "endless", stream: true })) controller.abort();
    if (!signal.aborted) throw new Error("the stream ended by itself");
  }
  if (phase !== "stream") throw new Error("nobody answers this");
} catch (error) {
  if (!signal.aborted) throw error;
}
console.log("ok");
// The process stays until the test has seen the cancel: its end would close the connection too.
process.stdin.on("end", () => process.exit(0));
