/** Asks /live again and again; one question at a time. */

export const PERIOD_MS = 1000;
const PATIENCE_MS = 8000;

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
    signal: AbortSignal.timeout(PATIENCE_MS),
  });
  if (!response.ok) throw new Error(`HTTP ${response.status}`);
  return response.json();
}

function pause(milliseconds) {
  return new Promise((resume) => setTimeout(resume, Math.max(0, milliseconds)));
}
