// Vercel's AI SDK: `generateText`, which retries, and `streamText`. ai_sdk.mjs URL

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";

import { serve } from "./link.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false;
const talks = {};

await serve(async ({ mode, talk, text, model, key }) => {
  const provider = createOpenAICompatible({ name: "statehold", baseURL: process.argv[2], apiKey: key });
  const messages = [...(talks[talk] ?? []), { role: "user", content: text }];
  const call = { model: provider(model), messages };
  let said = "";
  let response;
  if (mode === "stream") {
    const result = streamText({ ...call, onError() {} });
    for await (const part of result.fullStream) {
      if (part.type === "error") throw part.error;
      if (part.type === "text-delta") said += part.text;
    }
    response = await result.response;
  } else {
    const result = await generateText(call);
    said = result.text;
    response = result.response;
  }
  talks[talk] = [...messages, ...response.messages];
  return said;
});
