/** The last readings of /live, oldest first, for as long as the longest window. */

export class History {
  #readings = [];

  constructor(keptS) {
    this.keptS = keptS;
  }

  /**
   * Remember a reading, and tell whether it was a new one. Counters that fell mean a new service:
   * what was before is forgotten.
   */
  add(reading) {
    if (this.latest && reading.time_s <= this.latest.time_s) return false;
    if (this.latest && isNewService(this.latest, reading)) this.#readings = [];
    this.#readings.push(reading);
    const oldest = reading.time_s - this.keptS;
    // One reading from before the window stays: differences start from it.
    while (this.#readings.length > 2 && this.#readings[1].time_s <= oldest) this.#readings.shift();
    return true;
  }

  get latest() {
    return this.#readings.at(-1);
  }

  get size() {
    return this.#readings.length;
  }

  /** The reading that a window of so many seconds starts from, as seen at reading number `at`. */
  start(windowS, at = this.size - 1) {
    const begin = this.#readings[at].time_s - windowS;
    let first = at;
    while (first > 0 && this.#readings[first].time_s > begin) first -= 1;
    return this.#readings[first];
  }

  at(index) {
    return this.#readings[index];
  }
}

function isNewService(before, after) {
  const fell = (name) => after.totals[name] < before.totals[name];
  return after.model !== before.model || fell("requests") || fell("generation_tokens");
}
