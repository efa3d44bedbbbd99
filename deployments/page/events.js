/** Server-sent events, as OpenAI's endpoints write them: one `data:` line each. */

/** The data of each whole event, and the text of the event that is still on its way. */
export function splitEvents(text) {
  const parts = text.replaceAll("\r\n", "\n").split("\n\n");
  const rest = parts.pop();
  const data = parts.map((part) =>
    part
      .split("\n")
      .filter((line) => line.startsWith("data:"))
      .map((line) => line.slice(5).trimStart())
      .join("\n"),
  );
  return { data: data.filter((each) => each !== ""), rest };
}

/** The JSON events of a response body; its last, [DONE], says no more than its end. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const split = splitEvents(rest + value);
      rest = split.rest;
      for (const data of split.data) {
        if (data !== "[DONE]") yield JSON.parse(data);
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}
