// OpenAI's client for Node: whole answers, streams, and raw answers. openai_node.mjs URL

import OpenAI from "openai";

import { serve } from "./link.mjs";

const talks = {};

await serve(async ({ mode, talk, text, model, key }) => {
  const client = new OpenAI({ baseURL: process.argv[2], apiKey: key });
  const messages = [...(talks[talk] ?? []), { role: "user", content: text }];
  let said = "";
  if (mode === "stream") {
    const stream = await client.chat.completions.create({ model, messages, stream: true });
    for await (const chunk of stream) said += chunk.choices[0]?.delta.content ?? "";
  } else if (mode === "raw") {
    const answer = await client.chat.completions.create({ model, messages }).asResponse();
    if (!answer.headers.get("x-statehold-session")) throw new Error("an answer names its session");
    said = (await answer.json()).choices[0].message.content;
  } else {
    said = (await client.chat.completions.create({ model, messages })).choices[0].message.content;
  }
  talks[talk] = [...messages, { role: "assistant", content: said }];
  return said;
});
