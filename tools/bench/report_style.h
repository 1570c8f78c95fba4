/* report_style.h - how a report looks: light, dark, narrow and on paper. */
#ifndef REPORT_STYLE_H
#define REPORT_STYLE_H

static const char *const report_style[] = {
	":root{color-scheme:light dark;--bg:#f6f7f9;--card:#fff;--ink:#15202b;--soft:#55636f;--line:#dde3e8;"
	"--n:#b9c3cc;--c0:#1868c9;--c1:#d9620b;--c2:#1f8a4c;--c3:#8b3fb5;--c4:#c92a3b;--c5:#0b8494;--c6:#8a6d1a;"
	"--c7:#5b5fc7;--good:#1f7a43;--bad:#b3261e;--tint:.14}\n",
	"@media(prefers-color-scheme:dark){:root{--bg:#0f151b;--card:#171f27;--ink:#e8edf2;--soft:#9fb0be;"
	"--line:#2a3640;--n:#4a5763;--c0:#6aaefc;--c1:#ff9a4d;--c2:#58c98a;--c3:#c792ea;"
	"--c4:#ff7b86;--c5:#4fd0de;"
	"--c6:#e0bf5c;--c7:#a3a7ff;--good:#6fdc9a;--bad:#ff8f86;--tint:.2}}\n",
	"*{box-sizing:border-box}\n",
	"body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.5 system-ui,-apple-system,'Segoe UI',"
	"Roboto,'Helvetica Neue',Arial,sans-serif}\n",
	"main{max-width:1060px;margin:0 auto;padding:36px 20px 60px}\n",
	"header p{margin:.2em 0;color:var(--soft);overflow-wrap:anywhere}\n",
	"h1{font-size:1.9rem;line-height:1.2;letter-spacing:-.02em;margin:0 0 .2em;overflow-wrap:anywhere}\n",
	"h2{font-size:1.2rem;margin:2.4em 0 .3em;letter-spacing:-.01em}\n",
	"h2+p{margin:0 0 1em;color:var(--soft);max-width:70ch}\n",
	".says{font-size:1.08rem;border-left:4px solid var(--c0);background:var(--card);padding:.8em 1.1em;"
	"border-radius:0 10px 10px 0;margin:1.4em 0 0;overflow-wrap:anywhere}\n",
	".says.worse{border-color:var(--bad)}.says.better{border-color:var(--good)}\n",
	".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(175px,1fr));gap:12px;margin:1.4em 0 "
	        "0;"
	"padding:0;list-style:none}\n",
	".tiles li,figure{background:var(--card);border:1px solid var(--line);border-radius:12px;margin:0;"
	"padding:14px 16px}\n",
	".tiles b{display:block;font-size:1.7rem;line-height:1.2;font-weight:650;letter-spacing:-.02em;"
	"font-variant-numeric:tabular-nums}\n",
	".tiles b small{font-size:.9rem;font-weight:400;color:var(--soft);letter-spacing:0}\n",
	".tiles span{display:block;font-size:.85rem;color:var(--soft)}\n",
	".grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));gap:14px}\n",
	"figure{padding:14px 14px 6px;break-inside:avoid}\n",
	"figcaption{font-weight:600;font-size:.95rem;margin:0 0 2px 2px}figcaption small{font-weight:400;"
	"color:var(--soft)}\n",
	"svg{display:block;width:100%;height:auto;overflow:visible}\n",
	"svg text{font-size:12px;fill:var(--soft);font-variant-numeric:tabular-nums}svg .note{fill:var(--ink);"
	"paint-order:stroke;stroke:var(--card);stroke-width:4px;stroke-linejoin:round}\n",
	".grid "
	        "line.grid{stroke:var(--line);stroke-width:1}line.base{stroke:var(--soft);stroke-width:1}\n",
	"line.rule{stroke:var(--ink);stroke-width:1.5;stroke-dasharray:5 4;opacity:.75}\n",
	".line{fill:none;stroke:currentColor;stroke-width:2.2;stroke-linejoin:round;stroke-linecap:round}\n",
	".area{fill:currentColor;opacity:var(--tint)}.band{fill:currentColor}\n",
	".dot{fill:currentColor;stroke:var(--card);stroke-width:1.5}.whisker{stroke:currentColor;stroke-width:2;"
	"opacity:.5}\n",
	".n{color:var(--n)}.c0{color:var(--c0)}.c1{color:var(--c1)}.c2{color:var(--c2)}.c3{color:var(--c3)}"
	".c4{color:var(--c4)}.c5{color:var(--c5)}.c6{color:var(--c6)}.c7{color:var(--c7)}\n",
	".legend{display:flex;flex-wrap:wrap;gap:4px 18px;list-style:none;margin:.2em 0 1em;padding:0;"
	"font-size:.88rem}figure .legend{margin:.3em 2px .5em}\n",
	".legend li::before{content:'';display:inline-block;width:.8em;height:.8em;border-radius:3px;"
	"margin-right:.45em;background:currentColor;vertical-align:-.05em}.legend span{color:var(--ink);"
	"overflow-wrap:anywhere}\n",
	".bars{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:14px "
	        "16px;margin:0}\n",
	".bars div{display:grid;grid-template-columns:minmax(110px,210px) 1fr minmax(90px,auto);gap:4px 14px;"
	"align-items:center;padding:5px 0;font-size:.93rem}\n",
	".bars dt,.bars dd{margin:0;overflow-wrap:anywhere}.bars dd:last-child{text-align:right;"
	"font-variant-numeric:tabular-nums}\n",
	".bars svg{height:14px;overflow:hidden;border-radius:7px}\n",
	".scroll{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:12px}\n",
	"table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}\n",
	"caption{text-align:left;padding:12px 16px 0;color:var(--soft)}\n",
	"th,td{padding:6px 16px;text-align:right;border-top:1px solid var(--line);white-space:nowrap}\n",
	"th:first-child,td:first-child{text-align:left}thead th{border-top:0;color:var(--soft);font-weight:600;"
	"vertical-align:bottom}\n",
	"tbody th{font-weight:400;white-space:normal}thead th.name{white-space:normal;overflow-wrap:anywhere;"
	"min-width:9em}\n",
	".better{color:var(--good);font-weight:600}.worse{color:var(--bad);font-weight:600}\n",
	"footer{margin-top:3em;color:var(--soft);font-size:.85rem;max-width:80ch}\n",
	"@media(max-width:520px){main{padding:22px 12px 40px}h1{font-size:1.45rem}.bars div{"
	"grid-template-columns:1fr auto}.bars dd:nth-child(2){grid-column:1/-1;grid-row:2}th,td{padding:6px "
	        "10px}}\n",
	"@media print{:root{--bg:#fff}body{font-size:11pt}main{max-width:none;padding:0}.grid{"
	"grid-template-columns:1fr 1fr}h2{break-after:avoid}tr,.tiles li,.bars{break-inside:avoid}"
	"*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}\n",
};

#endif
