"""The style sheet of the report: two palettes by `prefers-color-scheme`, no font, no import.

The colours of arms keep apart for the common forms of colour blindness (Okabe and Ito, 2008),
and lines differ by dash too.
"""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root{--bg:#fff;--panel:#f6f7f9;--ink:#16191d;--soft:#5a6370;--grid:#dfe3e8;
--c0:#0067a5;--c1:#c2500a;--c2:#00805c;--c3:#9b4d86;--heat:#0067a5;
--good:#00704f;--bad:#b3261e;
--t0:#3b7db8;--t1:#dd8a3d;--t2:#4f9d79;--t3:#b56aa3;--t4:#c9b037;--t5:#6bb3d6;--t6:#a3685f;--t7:#8b929c}
@media (prefers-color-scheme:dark){:root{--bg:#14171b;--panel:#1d2127;--ink:#e8eaed;--soft:#a0a8b3;
--grid:#333a43;--c0:#62b4f0;--c1:#f39a57;--c2:#4fc9a0;--c3:#d792c4;--heat:#62b4f0;
--good:#5fd3a8;--bad:#ff8a80;
--t0:#5b9bd5;--t1:#e59c57;--t2:#65b892;--t3:#c888b8;--t4:#d8c355;--t5:#86c8e6;--t6:#bd857c;--t7:#7b838d}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1240px;margin:0 auto;padding:24px 20px 48px}
h1{font-size:1.6rem;line-height:1.25;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:32px 0 10px}
h3{font-size:.95rem;margin:0 0 6px;font-weight:600;overflow-wrap:anywhere}
.lead{margin:0 0 12px;color:var(--soft)}
small{color:var(--soft);font-size:.85em}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 20px;padding:0;margin:0 0 16px}
.legend.small{font-size:.85rem;margin-top:10px;gap:2px 14px}
.key{display:inline-block;width:14px;height:14px;border-radius:3px;margin-right:6px;vertical-align:-2px}
.k0{background:var(--c0)}.k1{background:var(--c1)}.k2{background:var(--c2)}.k3{background:var(--c3)}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,210px),1fr));gap:12px}
.cards div{background:var(--panel);border-radius:8px;padding:12px 14px}
.cards h3{color:var(--soft);font-weight:500}
.cards span{display:block;font-size:1.2rem;font-variant-numeric:tabular-nums}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:20px;margin-top:24px}
.three{grid-template-columns:repeat(auto-fit,minmax(min(100%,340px),1fr))}
figure{margin:0;background:var(--panel);border-radius:8px;padding:14px}
figcaption{color:var(--soft);font-size:.85rem;margin-top:4px}
svg{display:block;width:100%;height:auto;overflow:visible}
svg text{font:11.5px system-ui,sans-serif;fill:var(--soft);text-anchor:start}
svg .end{text-anchor:end}svg .middle{text-anchor:middle}
.grid{stroke:var(--grid);fill:none}
.field{fill:none;stroke:var(--grid)}
.line{fill:none;stroke-width:1.8;stroke-linejoin:round}
.c0{stroke:var(--c0)}.c1{stroke:var(--c1)}.c2{stroke:var(--c2)}.c3{stroke:var(--c3)}
.heat{fill:var(--heat)}
.t0{fill:var(--t0);background:var(--t0)}.t1{fill:var(--t1);background:var(--t1)}
.t2{fill:var(--t2);background:var(--t2)}.t3{fill:var(--t3);background:var(--t3)}
.t4{fill:var(--t4);background:var(--t4)}.t5{fill:var(--t5);background:var(--t5)}
.t6{fill:var(--t6);background:var(--t6)}.t7{fill:var(--t7);background:var(--t7)}
rect[class^=t]{stroke:var(--panel);stroke-width:.4}
.scroll{overflow-x:auto;background:var(--panel);border-radius:8px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;white-space:nowrap}
th,td{padding:7px 12px;text-align:right;border-bottom:1px solid var(--grid)}
th{font-weight:500}thead th{color:var(--soft);font-size:.85rem}
th:first-child{text-align:left}tbody tr:last-child>*{border-bottom:0}
tbody th{position:sticky;left:0;background:var(--panel)}
td,tbody th{vertical-align:top}td.arm,th.arm{text-align:left}
.gap{display:block;font-size:.82em;line-height:1.35;color:var(--soft)}
.grouped td,.grouped th{border-bottom:0}.grouped .first>*{border-top:1px solid var(--grid)}
.three svg text{font-size:14px}
.gap.better,.better{color:var(--good);font-weight:600}.gap.worse,.worse{color:var(--bad);font-weight:600}
.notes{color:var(--soft);padding-left:20px}
@media (max-width:600px){main{padding:16px 12px 32px}figure{padding:10px 8px}
.gap{white-space:normal;width:112px;margin-left:auto}
svg text{font-size:13.5px}.cards{grid-template-columns:1fr 1fr}
th,td{padding:6px 8px}tbody th{white-space:normal;min-width:120px}h1{font-size:1.3rem}}
@media print{figure,.scroll{break-inside:avoid}}
"""
