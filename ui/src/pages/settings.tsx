// Who may come in, what are the rules, which sites are connected?

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { ask, notify } from "../actions";
import { get, post, send, url } from "../api";
import { amounts, instant, plain, quote } from "../format";
import { href, param } from "../router";
import { may, server, session, state } from "../store";
import type { PolicyPlan, Token } from "../types";
import { Ago, Card, Command, Copy, Empty, Facts, JobLink, Loading, Refusal, Tabs, useAnswer } from "../widgets";

export function SettingsPage(): JSX.Element {
  const names = ["Server", "Sites", "Policy", ...(may("admin") ? ["Tokens"] : [])];
  const tab = param("tab") || "server";
  return (
    <>
      <Tabs name={tab} names={names} />
      {tab === "sites" ? <SitesTab /> : tab === "policy" ? <PolicyTab /> : tab === "tokens" && may("admin") ? <TokensTab /> : <ServerTab />}
    </>
  );
}

function ServerTab(): JSX.Element {
  const facts = server.value;
  if (!facts) return <Loading what="the server" />;
  return (
    <div class="grid">
      <Card title="Server">
        <Facts
          rows={[
            ["Version", facts.version],
            ["Started", <><Ago at_s={facts.started_s} /> <span class="quiet">run {facts.epoch}</span></>],
            ["Nodes", String(facts.nodes)],
            ["You", `${session.value?.user} (${session.value?.role}), tenant ${session.value?.tenant}`],
          ]}
        />
        <Command text="tercio doctor" />
      </Card>
      {[...new Set(facts.notes)].length ? (
        <Card title="Notes">
          {[...new Set(facts.notes)].map((note) => (
            <p class="quiet" key={note}>{note}</p>
          ))}
        </Card>
      ) : null}
    </div>
  );
}

interface Site {
  name: string;
  kind: string;
  error: string;
  can: Record<string, boolean>;
  notes: string[];
  nodes: number;
  nodes_ready: number;
  devices: Record<string, number>;
  tasks: number;
}

function SitesTab(): JSX.Element {
  const asked = useAnswer(() => get<{ rows: Site[] }>("/v1/sites"), [state.value.nodes.size]);
  if (asked.error) return <Refusal error={asked.error} retry={asked.again} />;
  if (!asked.value) return <Loading what="the sites" />;
  return (
    <div class="grid">
      {asked.value.rows.map((site) => (
        <Card key={site.name} title={site.name} more={<span class={`state ${site.error ? "state-down" : "state-ready"}`}>{site.error ? "✕ not connected" : "✓ connected"}</span>}>
          {site.error ? <p class="message">{plain(site.error)}</p> : null}
          <Facts
            rows={[
              ["Kind", site.kind],
              ["Nodes", <a href={href(`/nodes?site=${encodeURIComponent(site.name)}`)}>{site.nodes_ready} of {site.nodes} ready</a>],
              ["Devices", <span class="mono">{amounts(site.devices)}</span>],
              ["Our tasks", String(site.tasks)],
              ["Works", Object.entries(site.can).filter(([, works]) => works).map(([name]) => name.replaceAll("_", " ")).join(", ") || "–"],
              ["Does not", Object.entries(site.can).filter(([, works]) => !works).map(([name]) => name.replaceAll("_", " ")).join(", ") || "–"],
            ]}
          />
          {[...new Set(site.notes)].map((note) => <p class="quiet small-text" key={note}>{plain(note)}</p>)}
          <Command text={`tercio site check ${quote(site.name)}`} />
        </Card>
      ))}
      <Card title="Another site">
        <p class="quiet">A Slurm, Ray or other cluster is added on the server's machine, and connected at its next start:</p>
        <Command text="tercio site add --help" />
      </Card>
    </div>
  );
}

interface PolicyView {
  version: number;
  file: string;
  warnings: string[];
}

function PolicyTab(): JSX.Element {
  const asked = useAnswer(() => get<PolicyView>("/v1/policy", { text: true }), []);
  const history = useAnswer(() => get<{ rows: { version: number; at_s: number; by: string; changed: string[] }[] }>("/v1/policy/history", { limit: 50 }), [asked.value?.version]);
  const [file, setFile] = useState<string | null>(null);
  const [answer, setAnswer] = useState<{ plan?: PolicyPlan; error?: unknown; of?: string }>({});
  useEffect(() => setFile(null), [asked.value?.version]);
  if (asked.error) return <Refusal error={asked.error} retry={asked.again} />;
  if (!asked.value) return <Loading what="the policy" />;
  const text = file ?? asked.value.file;
  const isReviewed = answer.of === text && answer.plan !== undefined;
  const review = async (): Promise<void> => {
    try {
      setAnswer({ plan: await post<PolicyPlan>("/v1/policy/plan", { file: text, source: "policy.yaml" }), of: text });
    } catch (error) {
      setAnswer({ error, of: text });
    }
  };
  const apply = async (): Promise<void> => {
    try {
      await send("PUT", url("/v1/policy"), { file: text, source: "policy.yaml" }, { "If-Match": String(answer.plan!.version) });
      notify("the policy is in force");
      setAnswer({});
      asked.again();
    } catch (error) {
      setAnswer({ error, of: text });
    }
  };
  return (
    <div class="grid plan-grid">
      <Card title={`Policy, version ${asked.value.version}`}>
        <div class="editor">
          <textarea aria-label="policy file" spellcheck={false} readOnly={!may("operator")} value={text} rows={24} onInput={(event) => setFile(event.currentTarget.value)} />
        </div>
        {may("operator") ? (
          <div class="buttons">
            <button type="button" disabled={file === null} onClick={() => setFile(null)}>As it is in force</button>
            <span class="spring" />
            <button type="button" class={isReviewed ? "" : "primary"} onClick={() => void review()}>Show what it would do</button>
          </div>
        ) : null}
        <Command text="tercio policy show > policy.yaml" />
      </Card>
      <div>
        <Card title="What it would do">
          {answer.error ? <Refusal error={answer.error} /> : null}
          {answer.plan ? (
            <>
              <PlanOf plan={answer.plan} />
              {may("admin") ? (
                <div class="buttons">
                  <span class="spring" />
                  <button type="button" class={answer.plan.evicts.length ? "danger" : "primary"} disabled={!isReviewed} onClick={() => void apply()}>
                    {answer.plan.evicts.length ? `Apply and stop ${answer.plan.evicts.length} jobs` : "Apply"}
                  </button>
                </div>
              ) : null}
              {isReviewed ? null : <p class="warn">! The file was changed since; look again.</p>}
            </>
          ) : answer.error ? null : (
            <Empty title="Nothing reviewed yet">Edit the file, then see which jobs would start and stop.</Empty>
          )}
          <Command text={`tercio policy set policy.yaml --if-version ${asked.value.version}`} />
        </Card>
        <Card title="Versions">
          {history.error ? <Refusal error={history.error} /> : null}
          <ul class="lines">
            {history.value?.rows.map((row) => (
              <li key={row.version}>
                <b>{row.version}</b> <span>{row.by}</span> <Ago at_s={row.at_s} />
                <span class="quiet ellipsis">{row.changed.join(", ")}</span>
              </li>
            ))}
          </ul>
          {history.value?.rows.length === 0 ? <Empty title="The built-in policy is in force" /> : null}
        </Card>
      </div>
    </div>
  );
}

function PlanOf({ plan }: { plan: PolicyPlan }): JSX.Element {
  const moved = plan.queues.filter((row) => JSON.stringify(row.before) !== JSON.stringify(row.after));
  return (
    <div class={`outcome outcome-${plan.evicts.length ? "never" : "now"}`} role="status">
      <p class="verdict">
        <b>{plan.evicts.length ? `✕ Stops ${plan.evicts.length} jobs` : "✓ Stops no job"}</b>, starts {plan.starts.length}, changes the share of {moved.length} queues
      </p>
      <ul class="lines">
        {plan.evicts.map((row) => (
          <li key={row.job}>stops <JobLink id={row.job} /> <span class="quiet">{row.message}</span></li>
        ))}
        {plan.starts.map((row) => (
          <li key={row.job}>starts <JobLink id={row.job} /> <span class="quiet">{row.when}{row.nodes.length ? ` on ${row.nodes.join(", ")}` : ""}</span></li>
        ))}
        {moved.map((row) => (
          <li key={row.path}>
            <b>{row.path}</b> <span class="quiet">share {row.before ? amounts(row.before) : "new"} → {row.after ? amounts(row.after) : "gone"}</span>
          </li>
        ))}
      </ul>
      {plan.warnings.map((text) => (
        <p class="warn" key={text}>! {text}</p>
      ))}
    </div>
  );
}

const ROLES = ["viewer", "user", "operator", "admin"];

function TokensTab(): JSX.Element {
  const asked = useAnswer(() => get<{ rows: Token[] }>("/v1/tokens", { limit: 1000 }), []);
  const [form, setForm] = useState({ user: "", role: "user", tenant: "default", days: "90" });
  const [made, setMade] = useState<Token | null>(null);
  const [error, setError] = useState<unknown>(null);
  if (asked.error) return <Refusal error={asked.error} retry={asked.again} />;
  if (!asked.value) return <Loading what="tokens" />;
  const create = async (): Promise<void> => {
    const { days, ...rest } = form;
    try {
      setMade(await post<Token>("/v1/tokens", { ...rest, ...(days ? { expires_s: Math.round(Date.now() / 1000 + Number(days) * 86_400) } : {}) }));
      setError(null);
      asked.again();
    } catch (refusal) {
      setError(refusal);
    }
  };
  return (
    <div class="grid">
      <Card title="Tokens" wide csv={asked.value.rows.length ? "tokens" : undefined}>
        {asked.value.rows.length ? (
          <div class="scroll" tabIndex={0} role="region" aria-label="table of tokens">
            <table class="plain">
              <thead>
                <tr>{["Token", "User", "Role", "Tenant", "Groups", "Expires", "Revoke"].map((title) => <th key={title}>{title}</th>)}</tr>
              </thead>
              <tbody>
                {asked.value.rows.map((token) => (
                  <tr key={token.token_id}>
                    <td class="mono">{token.token_id}</td>
                    <td>{token.user}</td>
                    <td>{token.role}</td>
                    <td>{token.tenant}</td>
                    <td>{token.groups.join(", ") || "–"}</td>
                    <td>{token.expires_s ? <Ago at_s={token.expires_s} /> : "never"}</td>
                    <td>
                      <button
                        type="button"
                        class="small danger-quiet"
                        onClick={() =>
                          ask({
                            title: `Revoke ${token.token_id}`,
                            verb: "revoke",
                            plan: <p>It is refused from now on; {token.user}'s browser sessions made with it end. Jobs go on.</p>,
                            command: `tercio token revoke ${token.token_id}`,
                            isDanger: true,
                            calls: [{ method: "DELETE", path: `/v1/tokens/${token.token_id}` }],
                            done: asked.again,
                          })
                        }
                      >
                        Revoke
                      </button>
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        ) : (
          <Empty title="No token but this machine's admin token" />
        )}
      </Card>
      <Card title="New token">
        <form class="knobs" onSubmit={(event) => (event.preventDefault(), void create())}>
          <label class="field"><span>User</span><input required value={form.user} onInput={(event) => setForm({ ...form, user: event.currentTarget.value })} /></label>
          <label class="field">
            <span>Role</span>
            <select value={form.role} onChange={(event) => setForm({ ...form, role: event.currentTarget.value })}>
              {ROLES.map((role) => <option key={role}>{role}</option>)}
            </select>
          </label>
          <label class="field"><span>Tenant</span><input required value={form.tenant} onInput={(event) => setForm({ ...form, tenant: event.currentTarget.value })} /></label>
          <label class="field"><span>Days (empty: no end)</span><input inputMode="numeric" pattern="[0-9]*" value={form.days} onInput={(event) => setForm({ ...form, days: event.currentTarget.value })} /></label>
          <div class="buttons"><button type="submit" class="primary">Create</button></div>
        </form>
        {error ? <Refusal error={error} /> : null}
        {made?.secret ? (
          <div class="outcome outcome-now" role="status">
            <p><b>Its secret, shown this once:</b></p>
            <div class="command"><code>{made.secret}</code><Copy text={made.secret} /></div>
            <p class="quiet">{made.expires_s ? `until ${instant(made.expires_s)}` : "without end"}</p>
          </div>
        ) : null}
        <Command text={`tercio token create --user ${quote(form.user || "USER")} --role ${form.role} --tenant ${quote(form.tenant)}${form.days ? ` --expires ${form.days}d` : ""}`} />
      </Card>
    </div>
  );
}
