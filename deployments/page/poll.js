/** Asks /live again and again; one question at a time. */

import { authorization, keptKey } from "./keys.js";

export const PERIOD_MS = 1000;
const PATIENCE_MS = 8000;

/** The gateway answers, and wants the key of an operator: `status` 401, or 403 for another key. */
export class KeyWanted extends Error {
  constructor(status) {
    super(`HTTP ${status}`);
    this.status = status;
  }
}

/**
 * Call `onReading(reading)` or `onSilence(error)` once a period, for as long as the page lives.
 */
export async function poll(onReading, onSilence) {
  for (;;) {
    const begun = performance.now();
    let reading = null;
    try {
      reading = await ask();
    } catch (error) {
      onSilence(error);
    }
    // Outside the try: a mistake in drawing is no silence of the gateway.
    if (reading !== null) onReading(reading);
    await pause(PERIOD_MS - (performance.now() - begun));
  }
}

async function ask() {
  const response = await fetch("live", {
    cache: "no-store",
    headers: authorization(keptKey()),
    signal: AbortSignal.timeout(PATIENCE_MS),
  });
  if (response.status === 401 || response.status === 403) throw new KeyWanted(response.status);
  if (!response.ok) throw new Error(`HTTP ${response.status}`);
  return response.json();
}

function pause(milliseconds) {
  return new Promise((resume) => setTimeout(resume, Math.max(0, milliseconds)));
}
