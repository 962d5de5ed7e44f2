// The pages, in the order of the navigation. `tercio.web.pages` serves the same paths.

export interface View {
  path: string;
  title: string;
  key: string;
  icon: string;
  /** Least role that sees it. */
  role?: string;
}

export const VIEWS: View[] = [
  { path: "/", title: "Overview", key: "o", icon: "◱" },
  { path: "/jobs", title: "Jobs", key: "j", icon: "≡" },
  { path: "/plan", title: "Plan", key: "p", icon: "✎" },
  { path: "/queues", title: "Queues", key: "q", icon: "▥" },
  { path: "/nodes", title: "Nodes", key: "n", icon: "▤" },
  { path: "/topology", title: "Topology", key: "t", icon: "▦" },
  { path: "/reservations", title: "Reservations", key: "r", icon: "◷" },
  { path: "/twin", title: "Twin", key: "w", icon: "◫", role: "operator" },
  { path: "/sizing", title: "Sizing", key: "z", icon: "◬" },
  { path: "/usage", title: "Energy & usage", key: "u", icon: "◔" },
  { path: "/events", title: "Events", key: "e", icon: "↯" },
  { path: "/settings", title: "Settings", key: "s", icon: "⚙" },
];
