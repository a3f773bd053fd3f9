"""The style sheet of the HTML page: light, dark and print."""

from __future__ import annotations

STYLE = """\
:root {
  --ink: #1c1e21; --paper: #ffffff; --soft: #5a6068; --line: #d5d9de; --field: #f4f5f7;
  --good: #14663a; --unsure: #7a4f00; --bad: #a3141f; --mark: #22569c;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e6e8ea; --paper: #15181c; --soft: #a8b0b9; --line: #3a4048; --field: #1f242a;
    --good: #7fd6a2; --unsure: #f0c265; --bad: #ff9c9c; --mark: #8fbcf5;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 70rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.6rem; margin: .2rem 0 1rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; border-bottom: 1px solid var(--line); padding-bottom: .2rem; }
h3 { font-size: 1rem; margin: 0 0 .4rem; overflow-wrap: anywhere; }
p, li { overflow-wrap: anywhere; }
.class { display: inline-block; margin: 0; padding: .1rem .7rem; border: 2px solid currentColor; border-radius: 1rem; font-weight: 600; }
.answer { font-weight: 600; margin: .2rem 0; }
.aside { color: var(--soft); }
.good { color: var(--good); } .unsure { color: var(--unsure); } .bad { color: var(--bad); }
.finding { border-left: 4px solid var(--bad); padding: .2rem 0 .2rem 1rem; margin: 1rem 0; }
pre, code { font: .85rem/1.45 ui-monospace, monospace; }
pre { background: var(--field); padding: .6rem .8rem; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
code { overflow-wrap: anywhere; }
details { margin: .3rem 0; } summary { cursor: pointer; overflow-wrap: anywhere; }
:focus-visible { outline: 2px solid var(--mark); outline-offset: 2px; }
.scroll { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; font-size: .92rem; }
caption { text-align: left; color: var(--soft); padding-bottom: .2rem; }
th, td { text-align: left; vertical-align: top; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line); font-weight: normal; }
thead th { font-weight: 600; }
.numbers td { font-variant-numeric: tabular-nums; } .prose th, .prose td { overflow-wrap: anywhere; }
svg { vertical-align: middle; } .whole-line { white-space: nowrap; }
.figures { display: flex; flex-wrap: wrap; gap: 1rem 2rem; } figure { margin: 0; width: 420px; max-width: 100%; }
figure svg { max-width: 100%; height: auto; }
 figcaption { color: var(--soft); font-size: .92rem; }
.one { stroke: var(--soft); stroke-dasharray: 3 3; } .range { stroke: var(--mark); stroke-width: 3; } .mark { fill: var(--mark); }
.bar { fill: var(--mark); opacity: .45; } .whole { fill: var(--field); } .axis { stroke: var(--line); }
.curve { fill: none; stroke: var(--mark); stroke-width: 1.5; } .alarm { stroke: var(--bad); stroke-dasharray: 5 4; }
@media print {
  body { font-size: 9pt; } main { max-width: none; padding: 0; } .scroll { overflow: visible; }
  table { font-size: 8pt; } th, td { overflow-wrap: anywhere; padding-right: .5rem; } .whole-line { white-space: normal; }
  .whole-line svg { display: block; } figure { width: 45%; }
  details::details-content { content-visibility: visible; }
  h2, h3, caption, h2 + .aside { break-after: avoid; } tr, figure { break-inside: avoid; }
}
"""
