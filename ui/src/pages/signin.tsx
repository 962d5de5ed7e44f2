// Signing in: by the one-time code in the link's fragment, or with a token.

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get, post } from "../api";
import type { Session } from "../types";
import { Loading, Refusal } from "../widgets";

export function SignIn({ enter }: { enter: (session: Session) => void }): JSX.Element {
  const [token, setToken] = useState("");
  const [error, setError] = useState<unknown>(null);
  const [isBusy, setBusy] = useState(false);
  const exchange = async (body: { code: string } | { token: string }): Promise<void> => {
    setBusy(true);
    try {
      enter(await post<Session>("/v1/session", body));
    } catch (refusal) {
      setError(refusal);
      setBusy(false);
    }
  };
  useEffect(() => {
    const code = new URLSearchParams(location.hash.slice(1)).get("code");
    // The code leaves the address bar and the history before anything else.
    if (location.hash) history.replaceState(null, "", location.pathname);
    if (code) void exchange({ code });
    else get<Session>("/v1/session").then(enter, () => undefined);
  }, []);
  if (isBusy) return <Loading what="your session" />;
  return (
    <main class="signin">
      <h1>
        <span class="mark" aria-hidden="true">▦</span> Tercio
      </h1>
      {error ? <Refusal error={error} /> : null}
      <p>
        On the machine that runs the server, or wherever you use the command line, run <code>tercio web</code> and open the link that it prints. It signs you in; nothing is to be typed.
      </p>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void exchange({ token: token.trim() });
        }}
      >
        <label class="field">
          <span>Or paste a token</span>
          <input type="password" autocomplete="off" required value={token} onInput={(event) => setToken(event.currentTarget.value)} />
        </label>
        <div class="buttons">
          <button type="submit" class="primary">
            Sign in
          </button>
        </div>
      </form>
    </main>
  );
}
