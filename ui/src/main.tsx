// The page: sign-in, navigation, keys, and the view that the URL names.

import "uplot/dist/uPlot.min.css";
import "./style.css";
import { render, type ComponentChildren, type JSX } from "preact";
import { useEffect } from "preact/hooks";
import { ActionDialog, Notices } from "./actions";
import { get, Problem, send, url } from "./api";
import { zone, zoneName } from "./format";
import { Help, Palette, onKey } from "./keys";
import { EventsPage } from "./pages/events";
import { JobPage } from "./pages/job";
import { JobsPage } from "./pages/jobs";
import { NodePage, NodesPage } from "./pages/nodes";
import { Overview } from "./pages/overview";
import { PlanPage } from "./pages/plan";
import { QueuesPage } from "./pages/queues";
import { ReservationsPage } from "./pages/reservations";
import { SettingsPage } from "./pages/settings";
import { SignIn } from "./pages/signin";
import { TopologyPage } from "./pages/topology";
import { UsagePage } from "./pages/usage";
import { go, href, parts, path } from "./router";
import { sited } from "./site";
import { follow, leave, link, may, session, state, trouble } from "./store";
import { theme, toggleTheme } from "./theme";
import type { Session } from "./types";
import { Empty, lazy, Loading, Refusal, useInView } from "./widgets";
import { VIEWS } from "./views";

const TwinPage = lazy(async () => (await import("./pages/twin")).TwinPage);
const SizingPage = lazy(async () => (await import("./pages/sizing")).SizingPage);

function Page(): JSX.Element {
  const [view = "", name] = parts.value;
  switch (view) {
    case "":
      return <Overview />;
    case "jobs":
      return name ? <JobPage key={name} id={name} /> : <JobsPage />;
    case "plan":
      return <PlanPage />;
    case "queues":
      return <QueuesPage />;
    case "nodes":
      return name ? <NodePage key={name} name={name} /> : <NodesPage />;
    case "topology":
      return <TopologyPage />;
    case "reservations":
      return <ReservationsPage />;
    case "twin":
      return may("operator") ? <TwinPage /> : <Empty title="The twin is for operators">It reads the jobs of all tenants.</Empty>;
    case "sizing":
      return <SizingPage />;
    case "usage":
      return <UsagePage />;
    case "events":
      return <EventsPage />;
    case "settings":
      return <SettingsPage />;
    default:
      return <Empty title="There is no such page" />;
  }
}

function title(): string {
  const [view = "", name] = parts.value;
  const found = VIEWS.find((each) => each.path === `/${view}`);
  return name ?? found?.title ?? "Overview";
}

function Shell({ children }: { children: ComponentChildren }): JSX.Element {
  const view = `/${parts.value[0] ?? ""}`;
  useEffect(() => {
    document.title = `${title()} · Tercio`;
  }, [path.value]);
  const row = useInView<HTMLUListElement>(view);
  const hasHeading = !parts.value[1];
  return (
    <div class="shell">
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")?.focus())}>
        Skip to the content
      </a>
      <nav class="side" aria-label="Pages">
        <a class="brand" href={href(sited("/"))}>
          <span class="mark" aria-hidden="true">▦</span> Tercio
        </a>
        <ul ref={row}>
          {VIEWS.filter((each) => !each.role || may(each.role)).map((each) => (
            <li key={each.path}>
              <a href={href(sited(each.path))} aria-current={view === each.path ? "page" : undefined} title={each.key ? `g ${each.key}` : undefined}>
                <span aria-hidden="true" class="icon">{each.icon}</span> {each.title}
              </a>
            </li>
          ))}
        </ul>
      </nav>
      <div class="body">
        <header class="top">
          <button type="button" class="search" onClick={() => (Palette.isOpen.value = true)}>
            <span>Jump<span class="hide-2"> to…</span></span> <kbd>Ctrl K</kbd>
          </button>
          <span class="spring" />
          <Link />
          <button type="button" class="quiet-button" title="time zone shown" onClick={() => {
            zone.value = zone.value === "utc" ? "local" : "utc";
            localStorage.setItem("zone", zone.value);
          }}>
            {zoneName()}
          </button>
          <button type="button" class="quiet-button" aria-label={`theme: ${theme.value}`} title="light or dark" onClick={toggleTheme}>
            {theme.value === "dark" ? "☾" : "☀"}
          </button>
          <button type="button" class="quiet-button" aria-label="keys and help" onClick={() => (Help.isOpen.value = true)}>
            ?
          </button>
          <span class="who">
            {session.value?.user} <span class="quiet">{session.value?.role}</span>
          </span>
          <button type="button" class="quiet-button" onClick={() => void send("DELETE", url("/v1/session")).catch(() => undefined).then(leave)}>
            Sign out
          </button>
        </header>
        {link.value === "lost" ? (
          <div class="lost" role="alert">
            ! The connection to the server is lost: {trouble.value || "it ended"}. What is shown is of event {state.value.seq}; the page tries again by itself.
          </div>
        ) : null}
        <main id="main" tabIndex={-1}>
          {hasHeading ? <h1>{title()}</h1> : null}
          {children}
        </main>
      </div>
      <ActionDialog />
      <Palette.View />
      <Help.View />
      <Notices />
    </div>
  );
}

function Link(): JSX.Element {
  const words = { starting: "connecting", live: "live", lost: "not live", "signed-out": "signed out" }[link.value];
  return (
    <span class={`link link-${link.value}`} role="status" data-seq={state.value.seq} title={`event ${state.value.seq}`}>
      <span aria-hidden="true">{link.value === "live" ? "●" : "○"}</span> {words}
    </span>
  );
}

function App(): JSX.Element {
  if (path.value === "/signin" || link.value === "signed-out") return <SignIn enter={enter} />;
  if (!session.value) return trouble.value ? <Refusal error={trouble.value} retry={() => void start()} /> : <Loading what="the page" />;
  return (
    <Shell>
      {state.value.isLoaded ? <Page /> : link.value === "lost" ? <Refusal error={trouble.value} /> : <Loading what="the cluster" />}
    </Shell>
  );
}

function enter(found: Session): void {
  session.value = found;
  link.value = "starting";
  void follow();
  if (path.value === "/signin") go("/", true);
}

async function start(): Promise<void> {
  trouble.value = "";
  if (path.value === "/signin") return;
  try {
    enter(await get<Session>("/v1/session"));
  } catch (error) {
    if (error instanceof Problem && [401, 403].includes(error.status)) link.value = "signed-out";
    else trouble.value = error instanceof Problem ? error.detail : String(error);
  }
}

document.addEventListener("keydown", onKey);
render(<App />, document.getElementById("app")!);
void start();
