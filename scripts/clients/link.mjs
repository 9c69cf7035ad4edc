// How the checks talk to a client in a process of its own: a call per line of JSON, an answer per line.

import { createInterface } from "node:readline";

/** The HTTP status of an error, or of the one that it came from. */
function statusOf(error) {
  for (let at = error; at; at = at.lastError ?? at.cause) {
    const status = at.status ?? at.statusCode;
    if (status) return status;
  }
  return null;
}

/**
 * Calls `ask({ mode, talk, text, model, key })` for every line. It gives the text of the answer, and remembers
 * each talk in the way of its library.
 */
export async function serve(ask) {
  for await (const line of createInterface({ input: process.stdin })) {
    let said;
    try {
      said = { text: await ask(JSON.parse(line)) };
    } catch (error) {
      said = { error: error.name ?? typeof error, status: statusOf(error), message: String(error.message).slice(0, 500) };
    }
    process.stdout.write(JSON.stringify(said) + "\n");
  }
}
