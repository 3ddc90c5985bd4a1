// The official Anthropic client for Node: messages, whole, streamed and with tools. Prints what it understood.
import { isDeepStrictEqual } from "node:util";

import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.argv[2], apiKey: "unused", maxRetries: 0 });
const ask = { max_tokens: 9, messages: [{ role: "user", content: "hi" }] };
const seen = [];

for (const model of ["words", "tools"]) {
  const whole = await client.messages.create({ model, ...ask });
  const events = [];
  for await (const event of await client.messages.create({ model, ...ask, stream: true })) events.push(event);
  const folded = await client.messages.stream({ model, ...ask }).finalMessage();
  if (!isDeepStrictEqual(folded.content, whole.content)) throw new Error(JSON.stringify(folded));
  seen.push(whole, events, folded.content);
}
console.log(JSON.stringify(seen));
