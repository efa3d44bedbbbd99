/** Two runs of one request, with speculation and without: is the text the same, and how fast? */

/** Tokens per second after the first token; null for a run that had no more. */
export function decodeRate({ tokens, firstMs, endMs }) {
  const seconds = (endMs - firstMs) / 1000;
  return tokens > 1 && seconds > 0 ? (tokens - 1) / seconds : null;
}

/** {same, differsAt, ratio} of a run over a run with speculation off. */
export function compare(run, plain) {
  const rate = decodeRate(run);
  const plainRate = decodeRate(plain);
  const same = run.text === plain.text;
  return {
    same,
    differsAt: same ? null : firstDifference(run.text, plain.text),
    ratio: rate === null || plainRate === null ? null : rate / plainRate,
  };
}

/** Index of the first character that differs. */
export function firstDifference(one, other) {
  let at = 0;
  while (at < one.length && one[at] === other[at]) at += 1;
  return at;
}
