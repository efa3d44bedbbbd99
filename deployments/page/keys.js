/** The API key of this tab: kept until the tab closes, sent to this gateway alone. */

const NAME = "specdec-api-key";

/** What was kept, or "". A browser may forbid to keep anything. */
export function keptKey() {
  try {
    return sessionStorage.getItem(NAME) ?? "";
  } catch {
    return "";
  }
}

export function keepKey(key) {
  try {
    sessionStorage.setItem(NAME, key);
  } catch {
    // It is asked for again.
  }
}

/** The header that shows a key; none without one. */
export function authorization(key) {
  return key ? { authorization: `Bearer ${key}` } : {};
}
