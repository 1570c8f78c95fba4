// chart.js - charts over time on canvases, with one cursor over all.  Each has a table of the same numbers.

// Rows of numbers by the second or the minute, oldest first: {at: [..], "why.seqs": [..], ..}; missing columns are 0.
class Past {
	constructor(span, every) { this.span = span; this.every = every; this.clear(); }
	clear() { this.at = []; this.column = {}; }
	load(rows) {
		this.clear();
		this.at = rows.at;
		for (const [k, v] of Object.entries(rows))
			if (Array.isArray(v)) { if (k !== "at") this.column[k] = v; }
			else for (const [name, c] of Object.entries(v)) this.column[k + "." + name] = c;
	}
	add(at, values) {
		const n = this.at.length;
		this.at.push(at);
		for (const k of Object.keys(values)) this.column[k] ||= new Array(n).fill(0);
		for (const [k, c] of Object.entries(this.column)) c.push(values[k] === undefined ? 0 : values[k]);
		while (this.at.length && (this.at[0] < at - this.span - this.every || this.at.length > 2 * this.span / this.every)) {
			this.at.shift();
			for (const c of Object.values(this.column)) c.shift();
		}
	}
	value(name, i) { const c = this.column[name]; return c ? c[i] : 0; }
}

const charts = {
	all: [], frame: 0, past: null, turns: [], now: 0, cursor: null, // the cursor's time, or null
	show(past, now, turns) { Object.assign(this, { past, now, turns }); this.draw(); },
	// Once a frame, however often it is asked for.
	draw() {
		this.frame ||= requestAnimationFrame(() => { this.frame = 0; for (const c of this.all) c.draw(); });
	},
	point(at) { this.cursor = at; this.draw(); },
	// The row at the cursor, or the last.
	index() {
		const at = this.past.at;
		if (this.cursor === null) return at.length - 1;
		let i = at.findIndex(t => t >= this.cursor);
		return i < 0 ? at.length - 1 : i;
	},
};

const ink = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

class Chart {
	// what: {title, parts: [{name, label, colour, hatch?}], unit: value => text, stacked, height, scale?}
	constructor(what) {
		Object.assign(this, what);
		this.canvas = h("canvas", { tabIndex: 0, role: "img" });
		this.legend = h("span", { class: "legend" });
		this.table = h("div", { class: "table", hidden: true });
		const toggle = h("button", { type: "button", class: "quiet small", "aria-pressed": "false",
			"aria-label": "Table of " + this.title, onclick: () => {
				this.table.hidden = !this.table.hidden;
				toggle.setAttribute("aria-pressed", String(!this.table.hidden));
				this.draw();
			} }, "table");
		this.element = h("figure", { class: "chart" },
			h("figcaption", null, h("span", { class: "title" }, this.title), this.legend, toggle), this.canvas, this.table);
		this.canvas.style.height = this.height + "px";
		this.canvas.onpointermove = e => this.pointed(e.offsetX, e.offsetY);
		this.canvas.onpointerleave = () => { this.picked = null; charts.point(null); };
		this.canvas.onkeydown = e => this.moved(e);
		this.canvas.onblur = () => { this.picked = null; charts.point(null); };
		charts.all.push(this);
	}
	pointed(x, y) {
		const p = charts.past;
		if (!p || !p.at.length) return;
		charts.cursor = charts.now - p.span + x / this.canvas.clientWidth * p.span;
		this.picked = this.stacked ? this.part_at(charts.index(), 1 - y / this.height) : null;
		charts.draw();
		this.tell?.(charts.index(), this.picked);
	}
	moved(e) {
		const p = charts.past, step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30 }[e.key];
		if (!p || !p.at.length) return;
		if (step) {
			const i = Math.min(p.at.length - 1, Math.max(0, charts.index() + step));
			charts.cursor = p.at[i];
		} else if (this.stacked && (e.key === "ArrowUp" || e.key === "ArrowDown")) {
			const shown = this.shares(charts.index()).filter(s => s.share > 0).map(s => s.part);
			const at = shown.indexOf(this.picked) + (e.key === "ArrowUp" ? 1 : -1);
			this.picked = shown[(at + shown.length) % shown.length];
		} else if (e.key === "Escape") {
			charts.cursor = this.picked = null;
		} else {
			return;
		}
		e.preventDefault();
		if (this.stacked) this.picked ||= this.largest(charts.index());
		charts.draw();
		this.tell?.(charts.index(), this.picked);
	}
	// A step longer than a second is counted at its end: seconds without any look ahead to it.
	shares(i) {
		let v, all, to = Math.min(i + 8, charts.past.at.length - 1);
		do {
			v = this.parts.map(part => ({ part, value: charts.past.value(part.name, i) || 0 }));
			all = v.reduce((s, x) => s + x.value, 0);
		} while (!all && i++ < to);
		for (const x of v) x.share = all ? x.value / all : 0;
		return v;
	}
	largest(i) { return this.shares(i).reduce((a, b) => b.share > a.share ? b : a).part; }
	part_at(i, y) {
		let at = 0;
		for (const { part, share } of this.shares(i)) if ((at += share) >= y && share) return part;
		return this.largest(i);
	}
	draw() {
		const p = charts.past, c = this.canvas, w = c.clientWidth, dpr = devicePixelRatio || 1;
		if (!w || !p) return;
		if (c.width !== Math.round(w * dpr) || c.height !== this.height * dpr) {
			c.width = Math.round(w * dpr);
			c.height = this.height * dpr;
		}
		const g = c.getContext("2d");
		g.setTransform(dpr, 0, 0, dpr, 0, 0);
		g.clearRect(0, 0, w, this.height);
		const x = at => (at - charts.now + p.span) / p.span * w;
		if (this.stacked) this.bands(g, p, x);
		else this.lines(g, p, x, w);
		this.marks(g, x, w);
		this.say(p);
	}
	bands(g, p, x) {
		const H = this.height;
		for (let i = 0; i < p.at.length; i++) {
			const end = Math.ceil(x(p.at[i])), from = Math.floor(i && p.at[i] - p.at[i - 1] < 3 * p.every ? x(p.at[i - 1]) : x(p.at[i] - p.every));
			let y = H;
			if (end < 0) continue;
			for (const { part, share } of this.shares(i)) {
				if (!share) continue;
				g.clearRect(from, y - share * H, end - from, share * H);
				g.globalAlpha = this.picked && this.picked !== part ? 0.35 : 1;
				g.fillStyle = this.fill(g, part);
				g.fillRect(from, y - share * H, end - from, share * H + 0.3);
				y -= share * H;
			}
		}
		g.globalAlpha = 1;
	}
	// A band's colour; every other one is hatched, too, so that they can be told apart without colours.
	fill(g, part) {
		const colour = ink(part.colour), own = colour + ink("card");
		if (!part.hatch) return colour;
		if (part.made !== own) {
			const c = h("canvas", { width: 6, height: 6 }), t = c.getContext("2d");
			t.fillStyle = colour;
			t.fillRect(0, 0, 6, 6);
			t.strokeStyle = ink("card");
			t.globalAlpha = 0.45;
			t.lineWidth = 1.4;
			for (const d of [-6, 0, 6]) { t.beginPath(); t.moveTo(d, part.hatch > 1 ? 0 : 6); t.lineTo(d + 6, part.hatch > 1 ? 6 : 0); t.stroke(); }
			part.pattern = g.createPattern(c, "repeat");
			part.made = own;
		}
		return part.pattern;
	}
	top(p) {
		let most = 0;
		for (const part of this.parts) for (const v of p.column[part.name] || []) if (v > most) most = v;
		most *= this.scale || 1;
		const ten = 10 ** Math.floor(Math.log10(most || 1));
		return this.most || [1, 2, 2.5, 5, 10].map(k => k * ten).find(k => k >= most) || most;
	}
	lines(g, p, x, w) {
		const H = this.height, top = this.top(p);
		g.strokeStyle = ink("line");
		g.lineWidth = 1;
		for (const y of [0.5, Math.round(H / 2) + 0.5]) { g.beginPath(); g.moveTo(0, y); g.lineTo(w, y); g.stroke(); }
		g.fillStyle = ink("soft");
		g.font = "10.5px system-ui, sans-serif";
		g.fillText(this.unit(top), 3, 12);
		for (const part of this.parts) {
			const c = p.column[part.name];
			g.strokeStyle = ink(part.colour);
			g.lineWidth = 1.6;
			g.lineJoin = "round";
			g.setLineDash(part.dash || []);
			g.beginPath();
			let down = false, last = 0;
			for (let i = 0; i < p.at.length; i++) {
				const v = c ? c[i] : 0;
				if (v === null) continue;
				if (p.at[i] - last > 15 * p.every) down = false;
				last = p.at[i];
				const y = H - 1.5 - Math.min(1, v * (this.scale || 1) / top) * (H - 16);
				if (down) g.lineTo(x(p.at[i]), y);
				else g.moveTo(x(p.at[i]) - 0.5, y), g.lineTo(x(p.at[i]), y);
				down = true;
			}
			g.stroke();
			g.setLineDash([]);
		}
	}
	marks(g, x, w) {
		const H = this.height;
		g.font = "600 11px system-ui, sans-serif";
		for (const t of charts.turns) {
			const at = Math.round(x(t.at)) + 0.5;
			if (at < 0 || at > w) continue;
			g.strokeStyle = g.fillStyle = ink("ink");
			g.lineWidth = 1;
			g.setLineDash([3, 2]);
			g.beginPath(); g.moveTo(at, 0); g.lineTo(at, H); g.stroke();
			g.setLineDash([]);
			g.beginPath(); g.moveTo(at - 4, 0); g.lineTo(at + 4, 0); g.lineTo(at, 6); g.fill();
			if (!this.stacked) continue;
			const text = t.knob + " " + t.was + " → " + t.now, wide = g.measureText(text).width + 8;
			const left = at + wide + 4 < w ? at + 3 : at - wide - 3;
			g.fillStyle = ink("card");
			g.globalAlpha = 0.88;
			g.fillRect(left, 6, wide, 16);
			g.globalAlpha = 1;
			g.fillStyle = ink("ink");
			g.fillText(text, left + 4, 18);
		}
		if (charts.cursor !== null) {
			const at = Math.round(x(charts.cursor)) + 0.5;
			g.strokeStyle = ink("ink");
			g.lineWidth = 1;
			g.beginPath(); g.moveTo(at, 0); g.lineTo(at, H); g.stroke();
		}
	}
	// The legend has the numbers at the cursor; so has the label, for those who do not see the canvas.
	say(p) {
		const i = charts.index(), words = [];
		const shown = this.stacked ? this.shares(i).filter(s => p.column[s.part.name]?.some(v => v)) : null;
		only(this.legend, (shown || this.parts.map(part => ({ part }))).map(({ part, share }) => {
			const v = p.value(part.name, i), text = this.stacked ? percent(share) : v === null || i < 0 ? "–" : this.unit(v * (this.scale || 1));
			words.push(part.label + " " + text);
			return h("span", { class: "key" }, this.swatch(part), part.label + " ", h("b", null, text));
		}));
		this.canvas.setAttribute("aria-label", this.title + ": " + words.join(", ") + ". Arrow keys move the cursor.");
		if (!this.table.hidden) this.rows(p);
	}
	swatch(part) {
		const s = h("i", { class: "swatch" + (part.hatch ? " hatch" + part.hatch : "") + (part.dash ? " dashed" : "") });
		s.style.setProperty("--c", "var(--" + part.colour + ")");
		return s;
	}
	rows(p) {
		const n = p.at.length, step = Math.max(1, Math.ceil(n / 12)), body = [];
		for (let i = n - 1; i >= 0; i -= step)
			body.push(h("tr", null, h("th", { scope: "row" }, clock(p.at[i])), (this.stacked ? this.shares(i) : this.parts).map(s =>
				h("td", null, this.stacked ? percent(s.share) : this.unit((p.value(s.name, i) ?? NaN) * (this.scale || 1))))));
		only(this.table, h("table", null, h("thead", null, h("tr", null, h("th", null, "time"),
			this.parts.map(s => h("th", { scope: "col" }, s.label)))), h("tbody", null, body)));
	}
}
