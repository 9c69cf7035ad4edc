// A whole approval with the generated TypeScript client: approve.js URL CLIENT_KEY WORKER_KEY APPROVER_KEY

import assert from "node:assert/strict";

import { createClient } from "./statehold_client/client/index.js";
import {
  claimRequests, completeRequest, createSession, decideHold, getHold, getSession, listHolds, listMessages, openHold,
  releaseLease, startRequest,
} from "./statehold_client/index.js";
import type { Problem } from "./statehold_client/index.js";

const [baseUrl, ...keys] = process.argv.slice(2);
const caller = (auth?: string) => createClient({ baseUrl, auth });
const [client, worker, approver] = keys.map(caller);

/** The body of a call that succeeded. */
function done<T>(answer: { data?: T; error?: unknown }): T {
  assert.equal(answer.error, undefined, JSON.stringify(answer.error));
  assert.notEqual(answer.data, undefined);
  return answer.data as T;
}

/** The problem of a call that was refused. */
function refused(answer: { error?: Problem }, status: number, code: Problem["code"]): Problem {
  assert.ok(answer.error, "nothing was refused");
  assert.deepEqual([answer.error.status, answer.error.code], [status, code]);
  return answer.error;
}

const body = { app: "shop", user: "ann", agent: "payer" };
const headers = { "Idempotency-Key": "order-18" };
const session = done(await createSession({ client, body, headers }));
assert.equal(done(await createSession({ client, body, headers })).id, session.id);

const request = done(await startRequest({
  client: worker,
  path: { session_id: session.id },
  body: { input: "Pay invoice 18.", agent: "payer", lease: { ttl_seconds: 60 } },
}));
const fence = request.fence!;
const at = { request_id: request.id };
const opened = done(await openHold({
  client: worker,
  path: at,
  body: {
    fence,
    kind: "approval",
    title: "Pay invoice 18?",
    action: { tool: "pay", args: { invoice: 18, amount: "80.00" } },
  },
}));
done(await releaseLease({ client: worker, path: at, body: { fence } }));

const inbox = done(await listHolds({ client: approver, query: { agent: "payer" } }));
assert.deepEqual(inbox.holds.map((hold) => hold.id), [opened.id]);
const path = { hold_id: opened.id };
const hold = done(await getHold({ client: approver, path }));
assert.ok(hold.may_decide);
assert.deepEqual(hold.action?.args, { invoice: 18, amount: "80.00" });

const digest = hold.action?.digest;
const other = "sha256:" + "0".repeat(64);
refused(
  await decideHold({ client: approver, path, body: { decision: "approve", digest: other } }), 409, "digest_mismatch");
const decided = done(await decideHold({
  client: approver, path, body: { decision: "approve", digest, comment: "Checked." },
}));
assert.equal(decided.status, "approved");
refused(await decideHold({ client: approver, path, body: { decision: "reject" } }), 409, "hold_decided");

const claimed = done(await claimRequests({
  client: worker, body: { agent: "payer", request_id: request.id, wait_seconds: 30 },
}));
const [claim] = claimed.requests;
assert.deepEqual(
  claim?.decisions?.map((one) => [one.status, one.decision?.comment]), [["approved", "Checked."]]);
const output = "Invoice 18 is paid.";
refused(await completeRequest({ client: worker, path: at, body: { fence, output } }), 409, "stale_fence");
const completed = done(await completeRequest({ client: worker, path: at, body: { fence: claim!.fence!, output } }));
assert.equal(completed.status, "completed");

const page = done(await listMessages({ client, path: { session_id: session.id } }));
assert.ok("messages" in page);
assert.deepEqual(
  page.messages.map((message) => message.content), ["Pay invoice 18.", "Invoice 18 is paid."]);

const here = { session_id: session.id };
refused(await getSession({ client: approver, path: here }), 403, "forbidden");
refused(await getSession({ client: caller("shk_none"), path: here }), 401, "unauthenticated");
