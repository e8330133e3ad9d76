"""How the page looks: light and dark, narrow and wide, on paper. No fonts and no pictures are fetched.

Degrees go from light to dark (from dark to light on a dark page), so that they differ in lightness as well
as in hue; blue is ours, orange is what it is held against, and colour-blind readers tell them apart.
"""

_LIGHT = """
  --page: #fafaf8; --card: #ffffff; --ink: #16191d; --soft: #59626e; --line: #dfe3e8; --grid: #e9ecf0;
  --ours: #0069a8; --ours-soft: #c4dff1; --rival: #b4530a; --idle: #d5dae0; --bar: #8b97a6; --heat: #7db4dc;
  --d0: #8fc3e3; --d1: #4c9fd2; --d2: #1f77b4; --d3: #2a56a0; --d4: #57369a; --d5: #7b1f78; --d6: #4a0d3f;
"""
_DARK = """
  --page: #111417; --card: #191d22; --ink: #eceff2; --soft: #a3adb9; --line: #2e353d; --grid: #262c33;
  --ours: #5cb3ee; --ours-soft: #1d4a6b; --rival: #f0a15a; --idle: #39414a; --bar: #76828f; --heat: #2b6491;
  --d0: #2f638f; --d1: #3f86bd; --d2: #62abde; --d3: #9acbf0; --d4: #c4adf2; --d5: #e9b3e4; --d6: #fde3f3;
"""
_DEGREES = "\n".join(f".f{n} {{ fill: var(--d{n}); background: var(--d{n}); }}" for n in range(7))

_TEXT = """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
body {
  margin: 0; background: var(--page); color: var(--ink); overflow-wrap: anywhere;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums;
}
main, header, footer { max-width: 66rem; margin: 0 auto; padding: 0 1.5rem; }
header { padding-top: 3.5rem; }
.kicker { color: var(--ours); font-weight: 600; letter-spacing: .02em; margin: 0 0 .5rem; }
h1 { font-size: clamp(1.7rem, 1.2rem + 2.2vw, 2.6rem); line-height: 1.15; letter-spacing: -.02em; margin: 0; }
h1 { max-width: 26ch; text-wrap: balance; }
h2 { font-size: 1.35rem; letter-spacing: -.01em; line-height: 1.25; margin: 0 0 .5rem; }
h3 { font-size: 1rem; line-height: 1.3; margin: 0 0 .2rem; }
section { margin-top: 3.75rem; }
p { margin: 0 0 .9rem; max-width: 44rem; text-wrap: pretty; }
.lead { font-size: 1.06rem; color: var(--soft); margin-top: 1rem; }
.soft, figcaption, .meaning { color: var(--soft); }
.small, figcaption, details { font-size: .875rem; }
code, pre { font: .86em/1.55 ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace; }
pre {
  background: var(--card); border: 1px solid var(--line); border-radius: 8px; white-space: pre-wrap;
  padding: .9rem 1rem; margin: 1.25rem 0 0;
}
a { color: var(--ours); }
.note { border-left: 3px solid var(--rival); padding: .1rem 0 .1rem .9rem; margin-top: 1.25rem; }
.hidden {
  position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap;
}
ul.plain { padding-left: 1.1rem; margin: .75rem 0 0; max-width: 46rem; }
ul.plain li { margin: .35rem 0; }
footer { color: var(--soft); font-size: .875rem; padding-top: 3rem; padding-bottom: 4rem; }
"""

_BLOCKS = """
.cards { display: grid; grid-template-columns: repeat(var(--n), 1fr); gap: .75rem; margin-top: 2rem; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1rem 1.1rem; }
.card b { display: block; font-size: 1.85rem; line-height: 1.2; letter-spacing: -.02em; font-weight: 650; }
.card.first { background: var(--ours); border-color: var(--ours); color: var(--card); }
.card.first .soft { color: inherit; opacity: .9; }
.card span { display: block; font-size: .875rem; line-height: 1.4; margin-top: .15rem; }
dl.choice { display: grid; grid-template-columns: max-content 1fr; gap: .9rem 1.75rem; margin: 1.25rem 0 0; }
dl.choice dt { color: var(--soft); padding-top: .1rem; }
dl.choice dd { margin: 0; max-width: 42rem; color: var(--soft); }
dl.choice dd b { font-size: 1.1rem; display: block; color: var(--ink); }
.facts { display: grid; grid-template-columns: repeat(4, 1fr); gap: .9rem 1.25rem; }
.facts { margin: 1.25rem 0 0; padding: 0; list-style: none; }
.facts b { display: block; font-size: 1.15rem; line-height: 1.3; }
.facts span { color: var(--soft); font-size: .875rem; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; padding: 0; margin: .8rem 0 0; }
.legend { list-style: none; font-size: .8125rem; color: var(--soft); }
.legend i { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px; margin-right: .4rem; }
.legend i { vertical-align: -.08rem; }
.legend i.dashed { height: 0; border-radius: 0; border-top: 2px dotted var(--soft); vertical-align: .2rem; }
.legend i.stroke { height: 3px; border-radius: 0; vertical-align: .2rem; background: currentColor; }
table { border-collapse: collapse; font-size: .875rem; }
caption { text-align: left; color: var(--soft); padding-bottom: .5rem; }
th, td { padding: .35rem 1rem .35rem 0; text-align: right; vertical-align: top; font-weight: 400; }
th:first-child, td:first-child { text-align: left; }
thead th { color: var(--soft); }
tbody tr { border-top: 1px solid var(--line); }
.scroll { overflow-x: auto; }
.scroll td, .scroll thead th { white-space: nowrap; }
details { margin-top: 1rem; }
details table { margin-top: .6rem; }
summary { cursor: pointer; color: var(--ours); width: max-content; max-width: 100%; }
summary:focus-visible, .scroll:focus-visible { outline: 2px solid var(--ours); outline-offset: 3px; }
"""

_CHARTS = """
figure { margin: 1.5rem 0 0; break-inside: avoid; }
.plot { padding: 0 .25rem 1.7rem 3rem; margin-top: .75rem; }
.area { position: relative; height: var(--h); }
.area > svg { position: absolute; inset: 0; width: 100%; height: 100%; display: block; overflow: visible; }
.grid { stroke: var(--grid); }
.axis { stroke: var(--bar); }
svg line, svg path.line { vector-effect: non-scaling-stroke; stroke-width: 1px; }
svg path.line { fill: none; stroke-width: 2px; }
.tick, .mark { position: absolute; font-size: .75rem; line-height: 1; color: var(--soft); }
.tick, .mark { white-space: nowrap; font-style: normal; }
.tick.x { top: calc(100% + .45rem); transform: translateX(-50%); }
.tick.x.first { transform: none; }
.tick.x.last { transform: translateX(-100%); }
.tick.y { right: calc(100% + .45rem); transform: translateY(50%); }
.mark { top: -.95rem; transform: translateX(-50%); }
.mark.end { transform: translateX(-100%); }
.title { font-size: .8rem; color: var(--soft); margin: .75rem 0 0; max-width: none; }
.title.marked + .plot { margin-top: 1.5rem; }
.title.below { text-align: right; margin: 0; }
.stop { stroke: var(--ink); stroke-dasharray: 4 3; }
.cap { stroke: var(--soft); stroke-dasharray: 2 3; }
.out { fill: var(--rival); background: var(--rival); }
.idle { fill: var(--idle); background: var(--idle); }
.ours { color: var(--ours); }
.rival { color: var(--rival); }
path.ours { stroke: var(--ours); }
path.rival { stroke: var(--rival); }
.ways, .forest, .stacks { margin: 1.5rem 0 0; padding: 0; list-style: none; }
.ways li, .forest li { display: grid; gap: .1rem 1.5rem; align-items: center; }
.ways li { grid-template-columns: 15.5rem 1fr 13rem; }
.ways li { border-top: 1px solid var(--line); padding: .7rem 0; break-inside: avoid; }
.ways .meaning { font-size: .8125rem; line-height: 1.35; display: block; }
.ways .why { font-size: .8125rem; color: var(--soft); grid-column: 2 / -1; }
.ways .numbers { text-align: right; line-height: 1.4; white-space: nowrap; font-size: .9375rem; }
.ways .numbers b { font-size: 1.06rem; font-weight: 650; }
.ways .numbers span { display: block; font-size: .8125rem; color: var(--soft); }
.ways li.best { border-top: 2px solid var(--ours); }
.ways li.best strong { color: var(--ours); }
.track { display: block; position: relative; height: 1.5rem; overflow: hidden; }
.track.cut { mask-image: linear-gradient(to right, #000 85%, transparent); }
.track i { position: absolute; top: .25rem; bottom: .25rem; left: 0; }
.track .busy { background: var(--bar); border-radius: 3px 0 0 3px; }
.best .track .busy { background: var(--ours); }
.track .waits { background: repeating-linear-gradient(-45deg, var(--bar) 0 1.5px, var(--grid) 1.5px 5px); }
.track .waits { border-radius: 0 3px 3px 0; }
.track .spread { top: calc(50% - 1px); bottom: auto; height: 2px; background: var(--ink); opacity: .75; }
.track .tip { width: 2px; margin-left: -1px; top: .45rem; bottom: .45rem; opacity: .75; }
.track .tip { background: var(--ink); }
.stacks li { display: grid; grid-template-columns: 9rem 1fr; gap: .1rem 1.25rem; align-items: center; }
.stacks li { padding: .3rem 0; }
.stack { display: flex; height: 1.7rem; border-radius: 4px; overflow: hidden; background: var(--grid); }
.stack i { display: block; min-width: 0; box-shadow: inset -1px 0 0 var(--page); }
.forest li { grid-template-columns: 15.5rem 1fr 10.5rem; }
.forest li { padding: .45rem 0; border-top: 1px solid var(--line); }
li.scale { padding: 0 !important; height: 1.6rem; }
li.scale .lane { height: 0; align-self: start; }
.forest .numbers { text-align: right; font-size: .875rem; color: var(--soft); white-space: nowrap; }
.forest .numbers b { color: var(--ink); }
.lane { position: relative; height: 1.5rem; display: block; }
.lane i { position: absolute; top: calc(50% - 1px); }
.lane i.tick { top: .4rem; }
.lane i.fit { top: calc(50% - 4px); height: 8px; background: var(--ours-soft); border-radius: 4px; }
.lane i.step { top: calc(50% - 1.5px); height: 3px; background: var(--ours); }
.lane i.dot { width: 11px; height: 11px; margin-left: -5.5px; top: calc(50% - 5.5px); border-radius: 50%; }
.lane i.dot { background: var(--ours); }
.lane i.shift { width: 9px; height: 9px; margin-left: -4.5px; top: calc(50% - 4.5px); }
.lane i.shift { transform: rotate(45deg); background: var(--page); border: 2px solid var(--rival); }
.lane i.one { width: 1px; top: -.5rem; bottom: -.5rem; background: var(--bar); }
.tried { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
.tried { gap: 1.75rem 2.5rem; margin-top: 1.5rem; }
.tried figure { margin: 0; }
table.heat { width: 100%; table-layout: fixed; border-collapse: separate; border-spacing: 2px; }
table.heat th, table.heat td { padding: .5rem .1rem; text-align: center; font-size: .8125rem; }
table.heat th:first-child { text-align: left; width: 3.3rem; }
table.heat td { background: color-mix(in srgb, var(--heat) calc(var(--part) * 1%), var(--card)); }
table.heat td { border-radius: 4px; }
table.heat td.no { background: none; color: var(--soft); box-shadow: inset 0 0 0 1px var(--line); }
table.heat td.given { box-shadow: inset 0 -3px 0 var(--rival); }
table.heat td.pick { outline: 2px solid var(--ink); outline-offset: -1px; font-weight: 650; }
"""

_NARROW = """
  main, header, footer { padding-left: 1rem; padding-right: 1rem; }
  header { padding-top: 2rem; }
  section { margin-top: 3rem; }
  .cards { grid-template-columns: 1fr 1fr; gap: .5rem; }
  .card { padding: .75rem .85rem; }
  .card.first { grid-column: 1 / -1; }
  .card:last-child:nth-child(even) { grid-column: 1 / -1; }
  .card b { font-size: 1.45rem; }
  .facts { grid-template-columns: 1fr 1fr; }
  .plot { padding-left: 2.6rem; padding-right: 0; }
  .tick.minor { display: none; }
  dl.choice { grid-template-columns: 1fr; gap: .1rem; }
  dl.choice dd { margin-bottom: .9rem; }
  .ways li { grid-template-columns: 1fr max-content; align-items: start; gap: .1rem 1rem; }
  .ways .track, .ways .why { grid-column: 1 / -1; grid-row: 2; }
  .ways .numbers b { display: block; }
  .forest li { grid-template-columns: 1fr max-content; gap: 0 .75rem; }
  .forest .lane { grid-column: 1 / -1; grid-row: 2; }
  .forest li.scale .lane, .ways li.scale .lane { grid-row: 1; grid-column: 1 / -1; }
  .lane i.one { top: 0; bottom: 0; }
  .stacks li { grid-template-columns: 1fr; }
  table.heat th:first-child { width: 2.6rem; }
  table.heat th, table.heat td { font-size: .75rem; }
"""

_PAPER = """
  body { font-size: 10pt; }
  header { padding-top: 0; }
  section { margin-top: 1.5rem; }
  details:not([open]) { display: none; }
  main, header, footer { max-width: none; }
  h2, h3 { break-after: avoid; }
"""

CSS = (
    f":root {{ color-scheme: light dark; {_LIGHT} }}\n"
    f"@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}\n"
    f"@media print {{ :root {{ color-scheme: light; {_LIGHT} --page: #fff; }} }}\n"
    f"{_TEXT}{_BLOCKS}{_CHARTS}{_DEGREES}\n"
    f"@media (max-width: 46rem) {{ {_NARROW} }}\n@media print {{ {_PAPER} }}\n"
)
