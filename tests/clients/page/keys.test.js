import assert from "node:assert/strict";
import { test } from "node:test";

import { authorization, keepKey, keptKey } from "../../../deployments/page/keys.js";
import { KeyWanted, poll } from "../../../deployments/page/poll.js";
import { keyWanted } from "../../../deployments/page/verdict.js";

// What a poll asks for once its test is over: it goes on for as long as the process lives.
globalThis.fetch = () => new Promise(() => {});

function storage() {
  const kept = new Map();
  return { getItem: (name) => kept.get(name) ?? null, setItem: (name, value) => kept.set(name, value) };
}

test("a key is kept for the tab, and goes along", async (context) => {
  globalThis.sessionStorage = storage();
  context.after(() => delete globalThis.sessionStorage);
  assert.equal(keptKey(), "");
  keepKey("secret");
  const fetched = context.mock.method(globalThis, "fetch", async () => Response.json({ model: "m" }));
  const seen = await new Promise((resolve) => poll(resolve, () => {}));
  assert.deepEqual(seen, { model: "m" });
  const [path, { headers }] = fetched.mock.calls[0].arguments;
  assert.deepEqual([path, headers], ["live", { authorization: "Bearer secret" }]);
});

test("where nothing can be kept, nothing breaks", () => {
  keepKey("secret");
  assert.equal(keptKey(), "");
  assert.deepEqual(authorization(""), {});
});

for (const status of [401, 403]) {
  test(`a gateway that answers ${status} wants a key, and is not silent`, async (context) => {
    context.mock.method(globalThis, "fetch", async () => new Response("{}", { status }));
    const error = await new Promise((resolve) => poll(() => {}, resolve));
    assert.ok(error instanceof KeyWanted);
    assert.equal(error.status, status);
    assert.match(keyWanted(status).head, /operator/);
    });
}
