"""How the pages of bill and certificate look: light and dark, wide and narrow, on paper."""

from __future__ import annotations

from typing import Final

_LIGHT: Final = (
    "--back:#f5f6f9;--card:#fff;--ink:#171b24;--soft:#5a6474;--line:#e2e6ed;--track:#eef1f5;--accent:#2456d6;"
    "--good:#0a7f52;--bad:#c22333;--unsure:#a86400;--goodback:#e7f5ee;--badback:#fdecee;--unsureback:#fdf3e2;"
    "--s0:#2456d6;--s1:#5d8cf0;--s2:#9dbbf4;--s3:#b9c3d3;--s4:#d4680b;--s5:#f0a244;--s6:#e0c08e;--s7:#7d62c9;--s8:#c2417f"
)
_DARK: Final = (
    "--back:#0e1117;--card:#161a22;--ink:#e8ebf1;--soft:#9aa5b4;--line:#2a313d;--track:#222833;--accent:#85a9ff;"
    "--good:#4cc38a;--bad:#ff7a85;--unsure:#f2b155;--goodback:#12291f;--badback:#311a1f;--unsureback:#2d2415;"
    "--s0:#5d8cf0;--s1:#8db0f8;--s2:#4467a8;--s3:#5c6779;--s4:#f08c3a;--s5:#f6b96b;--s6:#a98752;--s7:#a28bea;--s8:#e673a6"
)
STYLE: Final = (
    f":root{{color-scheme:light dark;{_LIGHT}}}\n@media (prefers-color-scheme:dark){{:root{{{_DARK}}}}}\n"
    + "".join(f".s{at}{{background:var(--s{at});fill:var(--s{at})}}" for at in range(9))
    + """
*{box-sizing:border-box}
body{font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;margin:0;background:var(--back);color:var(--ink)}
header,main{max-width:64rem;margin:0 auto;padding:0 1.25rem}
header{padding-top:2.2rem}main{padding-bottom:3rem}
.brand{margin:0;font-size:.75rem;font-weight:700;letter-spacing:.12em;text-transform:uppercase;color:var(--accent)}
h1{font-size:1.85rem;line-height:1.2;letter-spacing:-.015em;margin:.15rem 0 .2rem}
.sub{margin:0 0 1.4rem;color:var(--soft)}
section{background:var(--card);border:1px solid var(--line);border-radius:.75rem;padding:1.2rem 1.35rem 1.35rem;margin:1.1rem 0}
h2{font-size:1.05rem;margin:0 0 .7rem;letter-spacing:-.005em}
section>p{margin:.4rem 0 .8rem}.note{color:var(--soft);font-size:.87rem;overflow-wrap:anywhere}
.verdict{display:flex;gap:.9rem;align-items:flex-start;border-radius:.75rem;padding:1rem 1.2rem;margin:1.1rem 0;border:1px solid}
.verdict strong{font-size:1.16rem;line-height:1.35}.verdict p{margin:.15rem 0 0;color:var(--ink)}
.sign{flex:none;width:1.75rem;height:1.75rem;border-radius:50%;display:grid;place-items:center;font-weight:700;color:var(--card)}
.good{background:var(--goodback);border-color:var(--good)}.good .sign{background:var(--good)}
.bad{background:var(--badback);border-color:var(--bad)}.bad .sign{background:var(--bad)}
.unsure{background:var(--unsureback);border-color:var(--unsure)}.unsure .sign{background:var(--unsure)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(13rem,1fr));gap:.8rem;margin:1.1rem 0}
.tiles>div{background:var(--card);border:1px solid var(--line);border-radius:.75rem;padding:.85rem 1rem}
dt{color:var(--soft);font-size:.83rem}dd{margin:.1rem 0 0;font-size:1.5rem;font-weight:650;letter-spacing:-.01em;
font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
dd small{display:block;font-size:.8rem;font-weight:400;letter-spacing:0;color:var(--soft);line-height:1.35}
tr.alarm td,.tiles .alarm dd{color:var(--bad);font-weight:650}.tiles .alarm{border-color:var(--bad)}
summary{cursor:pointer;color:var(--accent);font-size:.9rem}
.wide{overflow-x:auto;margin:0 -.3rem}
table{border-collapse:collapse;width:100%;font-size:.92rem;font-variant-numeric:tabular-nums}
th{font-size:.78rem;font-weight:600;color:var(--soft);border-bottom:1px solid var(--line)}
th,td{text-align:left;padding:.42rem .6rem;vertical-align:top}
td{border-top:1px solid var(--line)}tbody tr:first-child td{border-top:0}
td.c{font-family:ui-monospace,SFMono-Regular,Menlo,monospace;font-size:.84rem;overflow-wrap:anywhere;min-width:9rem}td.k{white-space:nowrap}
td.n,th.n{text-align:right;white-space:nowrap}
tfoot td{font-weight:650;border-top:2px solid var(--line)}
figure{margin:.9rem 0 .4rem}figcaption{font-size:.78rem;color:var(--soft);margin-bottom:.5rem}
.bars{display:grid;grid-template-columns:minmax(8rem,max-content) 1fr max-content;gap:0 .9rem}
.bar{display:grid;grid-template-columns:subgrid;grid-column:1/-1;align-items:center;padding:.28rem 0}
.name{overflow-wrap:anywhere}.value{text-align:right;color:var(--soft);font-size:.88rem;font-variant-numeric:tabular-nums}
.track{display:flex;height:.85rem;background:var(--track);border-radius:.25rem;overflow:hidden}
.track i{min-width:2px}.whole{height:1.5rem;border-radius:.35rem}
.legend{display:flex;flex-wrap:wrap;gap:.3rem 1.2rem;list-style:none;margin:.8rem 0 0;padding:0;font-size:.85rem;color:var(--soft)}
.legend i{display:inline-block;width:.7rem;height:.7rem;border-radius:.18rem;margin-right:.4rem}
.plot{position:relative;height:15rem;margin-left:4.6rem}
.plot svg{position:absolute;inset:0;width:100%;height:100%}
.ticks span{position:absolute;left:0;right:0;height:0;border-top:1px solid var(--line)}
.ticks b{position:absolute;right:100%;transform:translateY(-50%);padding-right:.6rem;font-size:.76rem;font-weight:400;color:var(--soft);
white-space:nowrap}
.across{display:flex;justify-content:space-between;margin:.4rem 0 0 4.6rem;font-size:.78rem;color:var(--soft)}.across.n1{justify-content:center}
@media (max-width:40rem){header,main{padding-left:.8rem;padding-right:.8rem}section{padding:1rem}h1{font-size:1.5rem}
.bars{display:block}.bar{grid-template-columns:1fr auto;gap:.15rem .9rem}.bar .track{grid-column:1/-1;grid-row:2}.tiles{grid-template-columns:1fr 1fr;gap:.6rem}
dd{font-size:1.2rem}.plot{height:11rem}th,td{padding:.4rem .32rem}table{font-size:.8rem}td.c{min-width:7rem;font-size:.75rem}}
@media print{body{background:#fff}section,.tiles>div{break-inside:avoid;border-color:#ccc}main{max-width:none}}
"""
)
