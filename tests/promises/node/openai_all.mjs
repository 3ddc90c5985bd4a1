// The official OpenAI client for Node: chats and responses, whole, streamed and with tools. Prints what it understood,
// so that the output through a proxy can be compared with the output direct.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "unused", maxRetries: 0 });
const messages = [{ role: "user", content: "hi" }];
const tool = { name: "weather", parameters: { type: "object", properties: {} } };
const seen = [];

for (const model of ["words", "tools"]) {
  const tools = [{ type: "function", function: tool }];
  seen.push(await client.chat.completions.create({ model, messages, tools }));
  for await (const chunk of await client.chat.completions.create({
    model, messages, tools, stream: true, stream_options: { include_usage: true },
  })) seen.push(chunk);
  // The client's own folding of the stream must come to the whole answer.
  const folded = await client.chat.completions.stream({ model, messages, tools }).finalChatCompletion();
  seen.push(folded.choices[0].message);

  seen.push(await client.responses.create({ model, input: "hi", tools: [{ type: "function", strict: false, ...tool }] }));
  for await (const event of await client.responses.create({ model, input: "hi", stream: true })) seen.push(event);
}

const folded = seen.find((one) => one.tool_calls);
if (folded.tool_calls.map((call) => call.function.name).join() !== "weather,time") throw new Error(JSON.stringify(folded));
console.log(JSON.stringify(seen));
