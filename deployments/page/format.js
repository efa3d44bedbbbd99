/** Numbers as people read them. Every function takes null for "not known". */

export const UNKNOWN = "–";

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

function known(value, write) {
  return value === null || value === undefined || !Number.isFinite(value) ? UNKNOWN : write(value);
}

/** A number with a fixed count of digits behind the point. */
export function fixed(value, digits = 2) {
  return known(value, (x) => x.toFixed(digits));
}

/** Things counted: 7,321 or 1.2M. */
export function count(value) {
  return known(value, (x) => (Math.abs(x) < 1e5 ? WHOLE : SHORT).format(x));
}

/** Per second, with as many digits as mean something. */
export function rate(value) {
  return known(value, (x) => (Math.abs(x) < 100 ? x.toFixed(1) : WHOLE.format(x)));
}

/** A ratio between 0 and 1. */
export function percent(value) {
  return known(value, (x) => `${Math.round(100 * x)} %`);
}

/** How many times as fast. */
export function times(value) {
  return known(value, (x) => `${x.toFixed(2)}×`);
}

/** Seconds, in the unit that fits. */
export function duration(seconds) {
  return known(seconds, (s) => {
    if (s === 0) return "0";
    if (s >= 100) return `${WHOLE.format(s)} s`;
    if (s >= 1) return `${s.toFixed(1)} s`;
    if (s >= 0.01) return `${(1000 * s).toFixed(0)} ms`;
    return `${(1000 * s).toFixed(1)} ms`;
  });
}

/** A span of time in a sentence: 17 seconds, 5 minutes. */
export function span(seconds) {
  return known(seconds, (s) => {
    const [n, unit] = s < 90 ? [Math.round(s), "second"] : [Math.round(s / 60), "minute"];
    return `${n} ${unit}${n === 1 ? "" : "s"}`;
  });
}

/** Names of the service in words: guard_off -> guard off. */
export function words(name) {
  return name === null || name === undefined || name === "" ? UNKNOWN : name.replaceAll("_", " ");
}
