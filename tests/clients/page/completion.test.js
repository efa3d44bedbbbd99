import assert from "node:assert/strict";
import { test } from "node:test";

import { compare, decodeRate } from "../../../deployments/page/comparison.js";
import { isReproducible, refusal, requestOf, speculationOf, stream } from "../../../deployments/page/completion.js";
import { events, splitEvents } from "../../../deployments/page/events.js";

const VALUES = {
  endpoint: "completion",
  prompt: "Hi",
  max_tokens: "8",
  temperature: "0",
  seed: "",
  speculation: { mode: "auto", k: "4", drafter: "" },
};

test("a form becomes a request; empty fields are left to the service", () => {
  const { path, body } = requestOf(VALUES);
  assert.equal(path, "v1/completions");
  assert.deepEqual(body, {
    prompt: "Hi",
    max_tokens: 8,
    temperature: 0,
    stream: true,
    stream_options: { include_usage: true },
    speculation: { explain: true, mode: "auto" },
  });
});

test("a chat has messages", () => {
  const { path, body } = requestOf({ ...VALUES, endpoint: "chat" });
  assert.equal(path, "v1/chat/completions");
  assert.deepEqual(body.messages, [{ role: "user", content: "Hi" }]);
  assert.equal("prompt" in body, false);
});

test("what is no number goes to the service as it is, which names the field", () => {
  assert.equal(requestOf({ ...VALUES, max_tokens: "many" }).body.max_tokens, "many");
});

test("K only with a fixed K, a drafter only where one may propose", () => {
  assert.deepEqual(speculationOf({ mode: "fixed", k: "3", drafter: "ngram" }), {
    explain: true, mode: "fixed", k: 3, drafter: "ngram",
  });
  assert.deepEqual(speculationOf({ mode: "off", k: "3", drafter: "ngram" }), { explain: true, mode: "off" });
});

test("texts come again when greedy or seeded", () => {
  assert.equal(isReproducible({ temperature: "0", seed: "" }), true);
  assert.equal(isReproducible({ temperature: "1", seed: "7" }), true);
  assert.equal(isReproducible({ temperature: "", seed: "" }), false);
});

test("events are split where they end, whatever arrives together", () => {
  const { data, rest } = splitEvents('data: {"a":1}\n\ndata: {"b":2}\n\n: comment\n\ndata: {"c"');
  assert.deepEqual(data, ['{"a":1}', '{"b":2}']);
  assert.equal(rest, 'data: {"c"');
});

/** A body that comes in pieces of so many bytes. */
function body(text, size) {
  const bytes = new TextEncoder().encode(text);
  return new ReadableStream({
    start(controller) {
      for (let at = 0; at < bytes.length; at += size) controller.enqueue(bytes.slice(at, at + size));
      controller.close();
    },
  });
}

test("a stream in pieces of any size is the same events", async () => {
  const text = 'data: {"text":"é"}\n\ndata: {"text":"\\n\\n"}\n\ndata: [DONE]\n\n';
  for (const size of [1, 2, 3, 7, 1000]) {
    const found = [];
    for await (const event of events(body(text, size))) found.push(event.text);
    assert.deepEqual(found, ["é", "\n\n"]);
  }
});

test("an error in mid-stream names its field and ends the stream", async (context) => {
  const text =
    'data: {"choices":[{"text":"a","finish_reason":null,"specdec":{"tokens":["a"]}}]}\n\n' +
    'data: {"error":{"message":"no","param":"timeout","code":504}}\n\ndata: [DONE]\n\n';
  context.mock.method(globalThis, "fetch", async () => new Response(body(text, 9)));
  const found = [];
  await assert.rejects(
    async () => {
      for await (const chunk of stream(requestOf(VALUES), "", undefined)) found.push(chunk);
    },
    { message: "no", field: "timeout", status: 504 },
  );
  assert.deepEqual(found, [{ text: "a", step: { tokens: ["a"] }, finishReason: null }]);
});

test("a key goes with the request, and none without one", async (context) => {
  const fetched = context.mock.method(globalThis, "fetch", async () => new Response(body("", 1)));
  for (const key of ["secret", ""]) {
    for await (const _ of stream(requestOf(VALUES), key, undefined));
  }
  const sent = fetched.mock.calls.map((call) => call.arguments[1].headers.authorization);
  assert.deepEqual(sent, ["Bearer secret", undefined]);
});

test("a refusal without JSON still says its status", async () => {
  const error = await refusal(new Response("<html>", { status: 502, statusText: "Bad Gateway" }));
  assert.deepEqual([error.message, error.field, error.status], ["HTTP 502 Bad Gateway", null, 502]);
});

test("two runs: same text or where it parts, and the ratio of their speeds", () => {
  const run = { text: "same text", tokens: 11, firstMs: 100, endMs: 1100 };
  assert.equal(decodeRate(run), 10);
  assert.deepEqual(compare(run, { ...run, endMs: 2100 }), { same: true, differsAt: null, ratio: 2 });
  assert.equal(compare(run, { ...run, text: "same test" }).differsAt, 7);
  assert.equal(compare(run, { ...run, tokens: 1 }).ratio, null);
});
