/** Percentiles of a histogram, as Prometheus' histogram_quantile reads them. */

/**
 * The value below which a share `q` of the observations lie, in seconds, taken as evenly spread
 * inside a bucket. Null without observations; the last edge where it lies beyond all edges.
 */
export function percentile(histogram, q) {
  if (histogram === null) return null;
  const { edges_s: edges, counts } = histogram;
  const total = counts.reduce((sum, n) => sum + n, 0);
  if (total <= 0) return null;
  const rank = q * total;
  let below = 0;
  for (const [bucket, inside] of counts.entries()) {
    if (inside > 0 && below + inside >= rank) {
      if (bucket >= edges.length) return edges[edges.length - 1];
      const low = bucket === 0 ? 0 : edges[bucket - 1];
      return low + ((edges[bucket] - low) * (rank - below)) / inside;
    }
    below += inside;
  }
  return edges[edges.length - 1];
}
