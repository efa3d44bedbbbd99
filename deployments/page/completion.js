/** One streamed generation: the request that a form asks for, and what comes back. */

import { events } from "./events.js";
import { authorization } from "./keys.js";

/** An error that the service told: `field` is the request field that it is about, or null. */
export class ServiceError extends Error {
  constructor(status, { message, param }) {
    super(message);
    this.status = status;
    this.field = param ?? null;
  }
}

/** {path, body} of the request that these form values ask for; empty fields are left out. */
export function requestOf(values) {
  const { endpoint, prompt, speculation } = values;
  const given = endpoint === "chat" ? { messages: [{ role: "user", content: prompt }] } : { prompt };
  const numbers = Object.entries({
    max_tokens: values.max_tokens,
    temperature: values.temperature,
    seed: values.seed,
  });
  return {
    path: endpoint === "chat" ? "v1/chat/completions" : "v1/completions",
    body: {
      ...given,
      ...Object.fromEntries(numbers.filter(([, text]) => text !== "").map(([k, v]) => [k, number(v)])),
      stream: true,
      stream_options: { include_usage: true },
      speculation: speculationOf(speculation),
    },
  };
}

/** The speculation object; `explain` makes each chunk carry its draft tokens. */
export function speculationOf({ mode, k, drafter }) {
  return {
    explain: true,
    mode,
    ...(mode === "fixed" && k !== "" ? { k: number(k) } : {}),
    ...(drafter !== "" && mode !== "off" ? { drafter } : {}),
  };
}

/** A number where the text is one; else the text, which the service refuses by the field's name. */
function number(text) {
  return Number.isFinite(Number(text)) ? Number(text) : text;
}

/** Whether the same request gives the same text again: greedy or seeded. */
export function isReproducible({ temperature, seed }) {
  return seed !== "" || (temperature !== "" && Number(temperature) === 0);
}

/**
 * Ask, and yield {text, step, finishReason} per chunk, then {usage, metrics}.
 *
 * Throws ServiceError for what the service refuses or breaks off, TypeError where it is away.
 */
export async function* stream({ path, body }, apiKey, signal) {
  const headers = { "content-type": "application/json", ...authorization(apiKey) };
  const response = await fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  if (!response.ok) throw await refusal(response);
  for await (const event of events(response.body)) {
    if (event.error) throw new ServiceError(event.error.code, event.error);
    const [choice] = event.choices;
    if (choice === undefined) yield { usage: event.usage, metrics: event.metrics };
    else yield chunkOf(choice);
  }
}

function chunkOf(choice) {
  return {
    text: choice.text ?? choice.delta?.content ?? "",
    step: choice.specdec ?? null,
    finishReason: choice.finish_reason,
  };
}

/** The error of a response, also where it is no JSON. */
export async function refusal(response) {
  const told = await response.json().catch(() => null);
  const error = told?.error ?? { message: `HTTP ${response.status} ${response.statusText}` };
  return new ServiceError(response.status, error);
}
