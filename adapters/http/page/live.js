// live.js - what the daemon does: one event a second from /ui/live, and /ui/history once.

const live = (() => {
	const span = { "10 min": new Past(600, 1), "24 h": new Past(86400, 60) };
	const part = (axis, name, label, colour, hatch) => ({ name: axis + "." + name, key: name, label, colour, hatch });
	const why = [part("why", "empty", "nothing more asked", "none"), part("why", "seqs", "max-num-seqs", "c1"),
		part("why", "tokens", "batched tokens", "c2", 1), part("why", "kv", "KV blocks", "c3"),
		part("why", "order", "first in queue", "c4", 1), part("why", "step_time", "step target", "c5"),
		part("why", "ring_out", "slow reader", "c6", 2), part("why", "pcie", "host copies", "c7", 1), part("why", "guide", "guides", "c8", 2)];
	const bound = [part("bound", "idle", "idle", "none"), part("bound", "host", "the daemon itself", "c4", 1),
		part("bound", "compute", "arithmetic", "c1"), part("bound", "bandwidth", "memory bandwidth", "c5", 2), part("bound", "pcie", "host copies", "c7", 1),
		part("bound", "ranks", "waiting ranks", "c8"), part("bound", "cores", "no core", "c3", 1)];
	let shown = "10 min", turns = [], advice = null, hello = {}, last = null, stopped = null, away = 0;
	const watchers = [];
	const box = {};

	// ---- the frame ----

	function tile(id, label) {
		box[id] = h("b", null, "–");
		box[id + "2"] = h("small");
		return h("div", { class: "tile" }, h("span", null, label), box[id], box[id + "2"]);
	}
	function line(title, parts, unit, more) {
		return new Chart({ title, parts, unit, height: 76, ...more });
	}
	function open(main) {
		const spans = Object.keys(span).map(name => h("button", { type: "button", "aria-pressed": String(name === shown), onclick: e => {
			shown = name;
			for (const b of e.target.parentNode.children) b.setAttribute("aria-pressed", String(b === e.target));
			draw();
		} }, name));
		const tell = axis => (i, p) => sentence(axis, i, p);
		box.whys = new Chart({ title: "Why no more rows were added", parts: why, stacked: true, height: 128, unit: percent, tell: tell("why") });
		box.bounds = new Chart({ title: "What bound the time", parts: bound, stacked: true, height: 96, unit: percent, tell: tell("bound") });
		const small = [
			line("Tokens a second", [{ name: "generated_tokens_per_s", label: "generated", colour: "c1" }, { name: "prompt_tokens_per_s", label: "prompt", colour: "c4", dash: [4, 3] }], v => number(v)),
			line("Time to the first token", [{ name: "ttft_us_p50", label: "p50", colour: "c5" }, { name: "ttft_us_p99", label: "p99", colour: "c3", dash: [4, 3] }], millis, { scale: 1e-6 }),
			line("Between tokens", [{ name: "itl_us_p50", label: "p50", colour: "c5" }, { name: "itl_us_p99", label: "p99", colour: "c3", dash: [4, 3] }], millis, { scale: 1e-6 }),
			line("Requests", [{ name: "running_milli", label: "running", colour: "c1" }, { name: "waiting_milli", label: "waiting", colour: "c3", dash: [4, 3] }], few, { scale: 1e-3 }),
			line("Time in the queue", [{ name: "queue_us_p50", label: "p50", colour: "c5" }, { name: "queue_us_p99", label: "p99", colour: "c3", dash: [4, 3] }], millis, { scale: 1e-6 }),
			line("KV cache and prefix hits", [{ name: "kv_permille", label: "blocks in use", colour: "c3" }, { name: "prefix_hits_permille", label: "hits", colour: "c5", dash: [4, 3] }], percent, { scale: 1e-3, most: 1 }),
		];
		box.ago = h("p", { class: "ago" });
		box.verdict = h("section", { class: "verdict", "aria-live": "off" });
		box.pointed = h("p", { class: "pointed", role: "status" }, "Point at a band, or press an arrow key in a chart: it says what that limit means.");
		box.memory = h("section", { class: "card" });
		box.knobs = h("section", { class: "card knobs" });
		box.clients = h("section", { class: "card clients" });
		box.replica = h("select", { "aria-label": "Which daemon", hidden: true, onchange: () => { span["10 min"].clear(); watch(); } });
		main.append(
			box.verdict,
			h("div", { class: "tiles" }, tile("running", "running"), tile("waiting", "waiting"), tile("generated", "tokens/s"),
				tile("prompt", "prompt tokens/s"), tile("ttft", "first token"), tile("itl", "between tokens"),
				tile("hits", "prefix hits"), tile("turn", "worst turn")),
			h("div", { class: "bar" }, h("h2", null, "Limits"), h("div", { class: "switch", role: "group", "aria-label": "How far back" }, spans), box.replica),
			h("div", { class: "card wide" }, box.whys.element, box.bounds.element, box.ago, box.pointed),
			h("div", { class: "multiples" }, small.map(c => c.element)),
			h("div", { class: "two" }, box.memory, box.knobs), box.clients);
		addEventListener("resize", draw);
		matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
	}

	// ---- words ----

	const stop = s => s ? (/^[a-z]+-/.test(s) ? s : s[0].toUpperCase() + s.slice(1)) + "." : "";
	function worth(w) {
		if (w.no_worth) return "What that would gain is unknown: " + w.no_worth + ".";
		if (w.worth === null) return "";
		return "Worth about " + percent(w.worth) + " more " + (w.step_ms_then === null ? "tokens" : "prompt tokens") +
			" a second while this is the limit" + (w.step_ms_then === null ? "." : ", with steps of " + w.step_ms_then.toFixed(1) + " ms.");
	}
	// The last busy seconds: the same numbers as the last columns of the bands.
	function verdict(w, at) {
		if (!w.seconds) return only(box.verdict, h("h2", null, "Nothing limits it", h("small", null, "nothing was under way in the last 5 min")));
		const be = at - w.until > 3 ? " was " : " is ", none = w.limit === "empty", little = !none && w.share < w.empty_share;
		const limit = none ? "" : why.find(p => p.key === w.limit).label, cores = w.lack_of_cores;
		const title = cores.limits ? { others: "Others hold its cores", quota: "Its CPU quota is used up", hypervisor: "Other machines hold its cores" }[cores.by] :
			none || little ? "Nothing" + (be === " is " ? " limits it" : " limited it") : "The limit" + be + limit;
		const n = Math.round(w.seconds), when = n === 1 ? "its last busy second" : "its last " + n + " busy seconds";
		only(box.verdict, h("h2", null, title, h("small", null, when + (be === " is " ? "" : ", until " + clock(w.until)))),
			h("p", { class: "shares" }, "In this time ", none || little ? "nothing more was asked for " + percent(w.empty_share) : limit + " kept rows out for " + percent(w.share),
				", and ", w.bound === "idle" ? "nothing was under way for " + percent(w.bound_share) : bound.find(p => p.key === w.bound).label + " bound " + percent(w.bound_share), "."),
			cores.limits && h("p", null, "For " + percent(cores.share) + " of the time under way: ", h("strong", null, stop(cores.what))),
			h("p", null, little ? "For " + percent(w.share) + " " + limit + " limited it: " + w.what + "." : stop(w.what), " ", h("strong", null, stop(w.turn)), w.more ? " " + stop(w.more) : "", " ", worth(w)),
			w.bound !== "cores" && h("p", { class: "soft" }, stop(w.bound_what)));
	}
	// What the pointed band of a chart means.
	function sentence(axis, i, p) {
		const past = charts.past;
		if (!p || i < 0 || !advice) return;
		const chart = axis === "why" ? box.whys : box.bounds, share = chart.shares(i).find(s => s.part === p).share;
		let a = advice[axis][p.key];
		if (p.name === "why.empty") {
			const parts = Object.keys(advice.empty).map(k => [k, past.value("empty." + k, i) || 0]);
			a = advice.empty[parts.reduce((x, y) => y[1] > x[1] ? y : x)[0]];
		}
		only(box.pointed, h("b", null, clock(past.at[i]) + " · " + p.label + " " + percent(share)), " – ", stop(a.what), " ",
			a.turn ? h("strong", null, stop(a.turn)) : "", a.more ? " " + stop(a.more) : "");
	}

	// ---- cards ----

	function memory(e) {
		const m = e.memory, kv = m.kv_bytes, used = e.kv_blocks ? e.kv_blocks_used / e.kv_blocks : 0, peak = e.kv_blocks ? m.kv_blocks_peak / e.kv_blocks : 0;
		const all = m.weights_bytes + kv || 1, cached = e.kv_blocks ? m.kv_blocks_cached / e.kv_blocks : 0, host = m.host_blocks * kv / (e.kv_blocks || 1);
		const piece = (label, n, colour, hatch) => {
			const b = h("div", { class: "piece" + (hatch ? " hatch" + hatch : ""), title: label });
			b.style.flexGrow = String(n / all);
			b.style.setProperty("--c", "var(--" + colour + ")");
			return b;
		};
		only(box.memory, h("h2", null, "Memory"),
			h("div", { class: "stack", role: "img", "aria-label": "weights " + bytes(m.weights_bytes) + ", KV cache " + bytes(kv) },
				piece("weights " + bytes(m.weights_bytes), m.weights_bytes, "c1"),
				piece("KV blocks in use", kv * used, "c3", 1), piece("cached prefixes", kv * cached, "c4"), piece("free KV blocks", kv * (1 - used - cached), "none")),
			h("dl", null,
				h("dt", null, "weights"), h("dd", null, bytes(m.weights_bytes)),
				h("dt", null, "KV cache on the device"), h("dd", null, bytes(kv) + ", " + m.kv_dtype + (m.kv_groups > 1 ? ", " + m.kv_groups + " groups" : "")),
				h("dt", null, "blocks in use"), h("dd", null, number(e.kv_blocks_used) + " of " + number(e.kv_blocks) + " (" + percent(used) + "), at most " + percent(peak) + " this minute"),
				m.kv_groups > 1 && m.kv_group.flatMap(g => [h("dt", null, g.window ? "last " + number(g.window) + " tokens" : "all tokens"), h("dd", null, number(g.blocks_used) + " blocks")]),
				h("dt", null, "cached prefixes"), h("dd", null, number(m.kv_blocks_cached) + " blocks (" + percent(cached) + ")"),
				m.states > 0 && [h("dt", null, "states"), h("dd", null, number(m.states_used) + " of " + number(m.states) + ", " + bytes(m.state_bytes))],
				h("dt", null, "host tier"), h("dd", null, m.host_blocks ? number(m.host_blocks_cached) + " of " + number(m.host_blocks) + " blocks hold cached prefixes, " + bytes(host) : "none"),
				h("dt", null, "holds"), h("dd", null, number(m.kv_tokens) + " tokens; " + number(e.max_model_len) + " at most in a request")));
	}

	let knobs_shown = "";
	function knobs(e) {
		const state = JSON.stringify([e.knobs, hello.turns_knobs]);
		if (state === knobs_shown || box.knobs.contains(document.activeElement)) return;
		knobs_shown = state;
		const says = h("p", { role: "status", class: "soft" }, hello.turns_knobs ? "" :
			"This page may not turn them. In a terminal: ");
		if (!hello.turns_knobs) says.append(h("code", null, "slipring set KNOB VALUE"));
		const rows = Object.entries(e.knobs).map(([name, k]) => {
			const id = "knob-" + name, value = String(k.now), can = hello.turns_knobs;
			const field = k.words ? h("select", { id, disabled: !can }, k.words.map(w => h("option", { value: w, selected: w === value }, w))) :
				h("input", { id, type: "number", min: 0, max: k.ceiling, step: "any", value, disabled: !can });
			const turn = h("button", { type: "submit", class: "small", disabled: true }, "Turn");
			field.oninput = () => { turn.disabled = field.value === value; };
			return h("form", { class: "knob", title: k.what, onsubmit: async ev => {
				ev.preventDefault();
				try {
					const r = await (await ask("ui/knob", { knob: name, value: field.value, replica: Number(box.replica.value || 0) })).json();
					says.textContent = r.knob + ": " + r.was + " → " + r.now;
					says.className = "soft";
					field.blur();
				} catch (x) {
					says.textContent = x.message;
					says.className = "error";
				}
			} }, h("label", { htmlFor: id }, name), field, h("span", { class: "soft" }, k.words ? "" : "to " + number(k.ceiling) + " " + k.unit), can && turn);
		});
		only(box.knobs, h("h2", null, "Knobs"), rows, says);
	}

	function clients(e) {
		if (!hello.sees_clients) {
			only(box.clients, h("h2", null, "Clients"), h("p", { class: "soft" }, number(e.clients) + " connected. Who they are is for an operator's key."));
			return;
		}
		// The odd ones first, then by tokens a second, as they come.
		const rows = [...e.client].sort((a, b) => /ring/.test(b.remark) - /ring/.test(a.remark));
		const of = (...cells) => h("tr", null, cells.map((c, i) => h(i ? "td" : "th", i ? { class: i < 7 ? "n" : "" } : { scope: "row" }, c)));
		const more = e.clients - rows.length;
		only(box.clients, h("h2", null, "Clients ", h("small", null, number(e.clients) + " connected")),
			h("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Clients" }, h("table", null,
				h("thead", null, h("tr", null, ["client", "pid", "uid", "live", "no token yet", "prompt/s", "tokens/s", "remark"].map((c, i) => h("th", { scope: "col", class: i && i < 7 ? "n" : "" }, c)))),
				h("tbody", null, rows.map(c => of(c.name, c.pid, c.uid, number(c.live), number(c.unanswered), number(c.prompt_tokens_per_s, 1), number(c.tokens_per_s, 1), c.remark))))),
			more > 0 && h("p", { class: "soft" }, "and " + number(more) + " more"));
	}

	// ---- events ----

	function draw() {
		if ($("live").hidden) return;
		only(box.ago, (shown === "24 h" ? ["24 h ago", "12 h", "now"] : ["10 min ago", "5 min", "now"]).map(s => h("span", null, s)));
		charts.show(span[shown], last?.at || Date.now() / 1e3, turns);
	}

	function add(e) {
		const v = {}, micro = x => x === null ? null : x * 1e6;
		for (const [axis, from] of [["why", e.why_s], ["bound", e.bound_s], ["empty", e.empty_s]])
			for (const [k, s] of Object.entries(from)) v[axis + "." + k] = s * 1e3;
		Object.assign(v, { generated_tokens_per_s: e.generated_tokens_per_s, prompt_tokens_per_s: e.prompt_tokens_per_s,
			running_milli: e.running * 1e3, waiting_milli: e.waiting * 1e3, prefix_hits_permille: e.prefix_hit_rate === null ? null : e.prefix_hit_rate * 1e3,
			kv_permille: e.kv_blocks ? 1e3 * e.kv_blocks_used / e.kv_blocks : 0, ttft_us_p50: micro(e.ttft_s.p50), ttft_us_p99: micro(e.ttft_s.p99),
			itl_us_p50: micro(e.itl_s.p50), itl_us_p99: micro(e.itl_s.p99), queue_us_p50: micro(e.queue_s.p50), queue_us_p99: micro(e.queue_s.p99) });
		span["10 min"].add(e.at, v);
	}

	function show(e) {
		last = e;
		for (const w of [...watchers]) w(e);
		if (e.away) {
			away ||= Date.now();
			$("state").textContent = "daemon away for " + age(Math.max(e.away_s, (Date.now() - away) / 1e3)) + ", asking again";
			$("state").className = "error";
			draw();
			return;
		}
		away = 0;
		$("state").className = "";
		$("state").textContent = e.model + " · " + e.device + " · " + e.state + " " + age(e.uptime_s) + " · " + e.running + " running, " + e.waiting + " waiting";
		const old = e.knobs, was = live.knobs;
		if (was) for (const k of Object.keys(old))
			if (was[k] && was[k].now !== old[k].now) turns.push({ at: e.at, knob: k, was: was[k].now, now: old[k].now });
		turns = turns.slice(-64);
		live.knobs = old;
		if (!e.first) add(e);
		if ($("live").hidden) return;
		box.running.textContent = number(e.running);
		box.running2.textContent = "of " + number(e.max_num_seqs);
		box.waiting.textContent = number(e.waiting);
		box.generated.textContent = number(e.generated_tokens_per_s);
		box.prompt.textContent = number(e.prompt_tokens_per_s);
		for (const [id, from] of [["ttft", e.ttft_s], ["itl", e.itl_s]]) {
			box[id].textContent = millis(from.p50);
			box[id + "2"].textContent = "p99 " + millis(from.p99);
		}
		box.hits.textContent = percent(e.prefix_hit_rate);
		box.turn.textContent = millis(e.longest_turn_s);
		verdict(e.why, e.at);
		memory(e);
		knobs(e);
		clients(e);
		draw();
	}

	async function history(query) {
		const past = await (await ask("ui/history" + query)).json();
		advice = past.advice;
		turns = past.past.turns;
		span["10 min"].load(past.past.seconds);
		span["24 h"].load(past.past.minutes);
	}

	// Watch until the page goes; after a break, again.
	async function watch() {
		stopped?.abort();
		const mine = stopped = new AbortController(), query = box.replica.value ? "?replica=" + box.replica.value : "";
		let wait = 1000;
		while (!mine.signal.aborted) {
			try {
				const r = await ask("ui/live" + query, undefined, mine.signal);
				await history(query);
				for await (const data of events(r)) {
					const e = JSON.parse(data);
					if (!e.hello) { show(e); wait = 1000; continue; }
					hello = e;
					if (e.daemons.length > 1 && box.replica.options.length !== e.daemons.length) {
						only(box.replica, e.daemons.map((name, i) => h("option", { value: i }, name)));
						box.replica.hidden = false;
					}
				}
				throw new Error("the server is gone");
			} catch (e) {
				if (mine.signal.aborted) return;
				$("state").textContent = e.status === 401 ? "a key is needed" : e.message.replace(/\.$/, "") + ", asking again";
				$("state").className = "error";
				if (e.status === 401) return;
			}
			await new Promise(done => setTimeout(done, wait));
			wait = Math.min(wait * 2, 10000);
		}
	}
	setInterval(() => { if (!$("live").hidden && !stopped?.signal.aborted && hello.hello) minute(); }, 60000);
	async function minute() {
		try {
			const m = (await (await ask("ui/history" + (box.replica.value ? "?replica=" + box.replica.value : ""))).json()).past.minutes;
			span["24 h"].load(m);
		} catch { }
	}
	return { open, watch, draw, watchers, knobs: null };
})();
