"""How a report looks: one sheet, for wide and narrow windows, light and dark; no scripts."""

STYLE = """
:root { --ink: #1d2733; --soft: #5b6875; --line: #dde3e9; --paper: #ffffff; --back: #f4f6f8;
  --accent: #0072b2; --good: #007a5a; --bad: #b3261e; --wait: #8a6100; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf0; --soft: #a3b0bc; --line: #36414c;
  --paper: #1b222a; --back: #12171d; --accent: #62b5e5; --good: #4cc79c; --bad: #ff8a80;
  --wait: #e5b94c; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--back); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 0 0 12px; overflow-wrap: anywhere; }
h3 { font-size: 1rem; margin: 18px 0 8px; overflow-wrap: anywhere; }
p { margin: 0 0 10px; } a { color: var(--accent); }
.lead, .note, figcaption { color: var(--soft); } .note { font-size: .875rem; }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 10px;
  padding: 18px 20px; margin-top: 18px; }
nav { display: flex; flex-wrap: wrap; gap: 4px 16px; margin-top: 12px; font-size: .9375rem; }
.wide { overflow-x: auto; margin: 0 -4px; padding: 0 4px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; min-width: 100%; }
th, td { text-align: left; padding: 7px 14px 7px 0; border-bottom: 1px solid var(--line);
  vertical-align: top; white-space: nowrap; }
td.why { white-space: normal; min-width: 16rem; overflow-wrap: anywhere; }
td.loose { white-space: normal; overflow-wrap: anywhere; }
th { font-size: .8125rem; color: var(--soft); font-weight: 600; }
tr:last-child td { border-bottom: 0; }
td small { display: block; color: var(--soft); font-size: .8125rem; }
td.number, th.number { text-align: right; padding-left: 14px; padding-right: 0; }
.best { font-weight: 700; }
.chip { display: inline-block; padding: 0 9px; border-radius: 99px; font-size: .8125rem;
  border: 1px solid currentColor; }
.done { color: var(--good); } .failed { color: var(--bad); }
.missing, .unfinished { color: var(--wait); }
.alarm { border-left: 5px solid var(--bad); } .alarm.waits { border-left-color: var(--wait); }
.alarm ul { margin: 0; padding-left: 1.1rem; overflow-wrap: anywhere; }
figure { margin: 0; } figure img { display: block; width: 100%; height: auto; background: #fff;
  border-radius: 6px; } figcaption { font-size: .875rem; margin: 2px 0 8px; }
.game { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(400px, 100%), 1fr));
  gap: 16px 24px; align-items: start; } .game figure { max-width: 640px; }
.films { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(220px, 100%), 1fr));
  gap: 14px; margin-top: 12px; }
video { display: block; width: 100%; max-height: 320px; background: #000; border-radius: 6px; }
.scale { position: relative; height: 22px; min-width: 180px; background: var(--back);
  border-radius: 4px; } .scale i { position: absolute; top: 9px; height: 4px; border-radius: 2px;
  background: var(--accent); opacity: .45; } .scale b { position: absolute; top: 5px; width: 4px;
  height: 12px; margin-left: -2px; border-radius: 2px; background: var(--accent); }
.scale s { position: absolute; top: 0; bottom: 0; width: 1px; background: var(--soft);
  opacity: .5; }
details { margin-top: 10px; } summary { cursor: pointer; color: var(--accent); }
code { font: .875em ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
@media (max-width: 560px) { main { padding: 18px 10px 40px; } section { padding: 14px 12px; }
  h1 { font-size: 1.4rem; } th, td { padding-right: 10px; } .scale { min-width: 110px; } }
@media print { section { break-inside: avoid; } body { background: #fff; } }
"""
