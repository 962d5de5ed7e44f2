// Requests to the API, as the signed-in user; every refusal is a Problem.

export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    readonly detail: string,
    readonly hint: string | null,
    readonly field: string | null,
  ) {
    super(detail);
  }
}

export const base = new URL(document.baseURI).pathname.replace(/\/$/, "");

type Query = Record<string, string | number | boolean | undefined>;

export function url(path: string, query: Query = {}): string {
  const pairs = Object.entries(query).filter(([, value]) => value !== undefined);
  const text = new URLSearchParams(pairs.map(([name, value]) => [name, String(value)])).toString();
  return base + path + (text ? `?${text}` : "");
}

export async function send(
  method: string,
  path: string,
  body?: unknown,
  headers: Record<string, string> = {},
): Promise<Response> {
  const init: RequestInit = { method, headers: { ...headers, "Tercio-Request": "page" } };
  if (body !== undefined) init.body = JSON.stringify(body);
  let response: Response;
  try {
    response = await fetch(path, init);
  } catch {
    throw new Problem(0, "unavailable", "the server does not answer", "the page tries again by itself", null);
  }
  if (!response.ok) throw await problem(response);
  return response;
}

export async function problem(response: Response): Promise<Problem> {
  const body = (await response.json().catch(() => ({}))) as Record<string, string | null>;
  return new Problem(
    response.status,
    body["code"] ?? "internal",
    body["detail"] ?? `the server answered ${response.status}`,
    body["hint"] ?? null,
    body["field"] ?? null,
  );
}

export async function get<T>(path: string, query: Query = {}): Promise<T> {
  return (await (await send("GET", url(path, query))).json()) as T;
}

export async function post<T>(path: string, body: unknown = {}, headers: Record<string, string> = {}): Promise<T> {
  return (await (await send("POST", url(path), body, headers)).json()) as T;
}

/** Return all rows of a paged list, at most `most`. */
export async function all<T>(path: string, query: Query = {}, most = 20_000): Promise<T[]> {
  const rows: T[] = [];
  let after: string | undefined;
  do {
    const page = await get<{ rows: T[]; next: string | null }>(path, { ...query, limit: 1000, after });
    rows.push(...page.rows);
    after = page.next ?? undefined;
  } while (after !== undefined && rows.length < most);
  return rows;
}

export interface Frame {
  name: string;
  id: string;
  text: string;
}

/** Yield the events of a stream, those that came together in one list. */
export async function* frames(path: string, stop: AbortSignal): AsyncGenerator<Frame[]> {
  const response = await fetch(path, { headers: { Accept: "text/event-stream" }, signal: stop });
  if (!response.ok) throw await problem(response);
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop() ?? "";
    const found: Frame[] = [];
    for (const part of parts) {
      const frame: Frame = { name: "message", id: "", text: "" };
      for (const line of part.split("\n")) {
        if (line.startsWith("data: ")) frame.text += line.slice(6);
        else if (line.startsWith("event: ")) frame.name = line.slice(7);
        else if (line.startsWith("id: ")) frame.id = line.slice(4);
      }
      if (frame.text) found.push(frame);
    }
    // An empty list is a sign of life.
    yield found;
  }
}
