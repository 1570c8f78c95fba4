// talk.js - a chat with the model, or a completion; the probability of each token, and what the request cost.

const talk = (() => {
	let model = null, running = null, turns = [];
	const box = {}, texts = new Map(); // texts: of tokens, by id
	const fields = {};

	// ---- settings: only what differs from what the server would do is sent ----

	function setting(name, label, input, read) {
		input.id = "set-" + name;
		fields[name] = { input, read, empty: input.type === "checkbox" ? input.checked : input.value };
		return input.type === "checkbox" ? h("label", { class: "check" }, input, label) :
			h("div", { class: "field" }, h("label", { htmlFor: input.id }, label), input);
	}
	const numeric = (name, label, min, max, step, hint) => setting(name, label,
		h("input", { type: "number", min, max, step, placeholder: hint }), s => s === "" ? undefined : Number(s));
	const json = what => s => {
		if (!s.trim()) return undefined;
		try { return JSON.parse(s); } catch (e) { throw new Refused(0, what + " is no JSON: " + e.message); }
	};

	function sampling() {
		const body = {};
		for (const name of ["temperature", "top_p", "max_tokens", "seed", "stop"]) {
			const v = fields[name].read(fields[name].input.value);
			if (v !== undefined) body[name] = v;
		}
		return body;
	}
	// What the page asks for beside what its user does: numbers and ids.
	function extras(chat) {
		const more = { stream: true, stream_options: { include_usage: true }, timings: true, return_token_ids: true };
		if (!fields.logprobs.input.checked) return more;
		return { ...more, return_tokens_as_token_ids: true, ...(chat ? { logprobs: true, top_logprobs: 5 } : { logprobs: 5 }) };
	}
	function chat_body() {
		const messages = turns.filter(t => t.role !== "assistant" || t.content).map(({ role, content }) => ({ role, content }));
		const system = fields.system.input.value, schema = fields.schema.read(fields.schema.input.value), tools = fields.tools.read(fields.tools.input.value);
		if (system) messages.unshift({ role: "system", content: system });
		return { ...(model && { model: model.id }), messages, ...sampling(),
			...(schema && { response_format: { type: "json_schema", json_schema: { name: "answer", schema, strict: true } } }),
			...(tools && { tools }) };
	}

	// ---- the conversation ----

	function add_turn(role, content) {
		const t = { role, content, tokens: [], body: h("div", { class: "text" }, content), raw: [], notes: h("div", { class: "notes" }) };
		t.element = h("article", { class: "turn " + role }, h("h3", null, { user: "You", assistant: "Model", prompt: "Prompt" }[role]), t.body, t.notes);
		turns.push(t);
		box.log.append(t.element);
		box.empty.hidden = true;
		return t;
	}
	const down = () => { if (box.follow) box.log.scrollTop = box.log.scrollHeight; };

	// ---- tokens ----

	const decoder = () => new TextDecoder("utf-8");
	function id_of(token) { return Number(String(token).replace("token_id:", "")); }

	// The shade of a token: how surprising it was, from 0 to 1.
	const surprise = p => Math.min(1, -Math.log2(Math.max(p, 1e-6)) / 8);

	function put_token(t, token) {
		const span = h("span", { class: "token", tabIndex: -1 }, token.text);
		span.style.setProperty("--s", surprise(token.p).toFixed(3));
		span.onpointerenter = () => point(t, token, span);
		span.onclick = () => point(t, token, span, true);
		span.onkeydown = e => {
			const to = { ArrowRight: span.nextElementSibling, ArrowLeft: span.previousElementSibling }[e.key];
			if (to) { to.focus(); point(t, t.tokens[[...t.body.children].indexOf(to)], to); }
			else if (e.key === "Enter") point(t, token, span, true);
			else return;
			e.preventDefault();
		};
		token.span = span;
		t.tokens.push(token);
		t.body.append(span);
		if (t.tokens.length === 1) span.tabIndex = 0;
	}

	function chat_tokens(t, entries) {
		for (const e of entries) {
			const of = x => {
				const id = id_of(x.token), own = new Uint8Array(x.bytes || []);
				if (!texts.has(id)) texts.set(id, decoder().decode(own));
				return { id, p: Math.exp(x.logprob) };
			};
			const token = { ...of(e), top: (e.top_logprobs || []).map(of) };
			token.text = t.decoder.decode(new Uint8Array(e.bytes || []), { stream: true });
			if (!t.ended) put_token(t, token);
		}
	}
	function completion_tokens(t, choice) {
		const l = choice.logprobs;
		l.tokens.forEach((name, i) => put_token(t, { id: id_of(name), p: Math.exp(l.token_logprobs[i] ?? 0), text: i ? "" : choice.text,
			top: Object.entries(l.top_logprobs[i] || {}).map(([k, v]) => ({ id: id_of(k), p: Math.exp(v) })) }));
	}
	async function text_of(id) {
		if (!texts.has(id)) texts.set(id, (await (await ask("detokenize", { tokens: [id] })).json()).prompt);
		return texts.get(id);
	}
	const visible = s => s === "" ? "(part of a character)" : s.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/ /g, "␣");

	// What else could have stood here; a click goes on from there.
	async function point(t, token, span, stay) {
		if (!token || (box.stays && !stay && !box.pop.hidden)) return;
		const all = [...new Map([...token.top, token].map(x => [x.id, x])).values()].sort((a, b) => b.p - a.p);
		const names = await Promise.all(all.map(x => text_of(x.id)));
		box.stays = stay;
		only(box.pop, h("p", { class: "soft" }, stay ? "Continue from here with" : "Click to continue with another"), all.map((x, i) =>
			h("button", { type: "button", class: "other" + (x.id === token.id ? " taken" : ""), disabled: !t.prompt || !!running, onclick: () => branch(t, token, x.id, names[i]) },
				h("code", null, visible(names[i])), h("span", { class: "meter" }, bar(x.p)), h("span", { class: "n" }, (x.p * 100).toFixed(x.p < 0.1 ? 1 : 0) + " %"))),
			stay && h("button", { type: "button", class: "quiet small", onclick: close_pop }, "Close"));
		box.pop.hidden = false;
		const at = span.getBoundingClientRect(), home = box.talk.getBoundingClientRect();
		box.pop.style.left = Math.max(0, Math.min(at.left - home.left, home.width - box.pop.offsetWidth - 8)) + "px";
		box.pop.style.top = at.bottom - home.top + 4 + "px";
		if (stay) box.pop.querySelector("button:not([disabled])")?.focus();
	}
	function bar(p) { const b = h("i"); b.style.width = Math.max(2, p * 100) + "%"; return b; }
	function close_pop() { box.pop.hidden = true; box.stays = false; }

	// Exact: the prompt's ids, the answer's so far, and the other token, as a completion.
	function branch(t, token, id, text) {
		close_pop();
		const kept = t.tokens.slice(0, t.tokens.indexOf(token));
		while (turns.at(-1) !== t) turns.pop().element.remove();
		const rest = t.tokens.slice(kept.length);
		for (const x of rest) x.span.remove();
		t.tokens = kept;
		t.body.querySelector(".error")?.remove();
		put_token(t, { ...rest[0], id, text, p: rest[0].top.find(x => x.id === id)?.p ?? rest[0].p });
		t.tokens.at(-1).span.classList.add("chosen");
		t.content = t.tokens.map(x => x.text).join("");
		run(t, "v1/completions", { ...(model && { model: model.id }), prompt: [...t.prompt, ...t.tokens.map(x => x.id)], ...sampling(), add_special_tokens: false }, true);
	}

	// ---- a request ----

	function take_chat(t, choice) {
		const d = choice.delta || {};
		const thought = d.reasoning ?? d.reasoning_content;
		if (thought) {
			t.thought ||= t.element.insertBefore(h("details", { class: "thought", open: true }, h("summary", null, "Thoughts"), h("div", { class: "text" })), t.body);
			t.thought.lastChild.append(thought);
		}
		for (const c of d.tool_calls || []) {
			t.calls ||= [];
			t.calls[c.index] ||= t.element.insertBefore(h("pre", { class: "call" }), t.notes);
			t.calls[c.index].append((c.function?.name ? c.function.name + " " : "") + (c.function?.arguments || ""));
		}
		if (d.content) t.content += d.content;
		const plain = !choice.logprobs || t.thought || t.calls;
		if (plain && d.content) t.body.append(d.content);
		else if (choice.logprobs?.content) {
			t.ended = choice.finish_reason === "stop" && !d.content;
			chat_tokens(t, choice.logprobs.content);
		}
	}
	function take_completion(t, choice) {
		t.content += choice.text;
		if (choice.logprobs?.tokens?.length) completion_tokens(t, choice);
		else if (choice.text) t.body.append(choice.text);
	}

	async function run(t, path, body, again) {
		const chat = path === "v1/chat/completions", sent = { ...body, ...extras(chat) };
		const r = { begin: performance.now(), first: 0, last: 0, n: 0, samples: [] };
		const watch = e => { if (!e.away) r.samples.push(e); };
		live.watchers.push(watch);
		running = new AbortController();
		box.send.textContent = "Stop";
		box.send.classList.add("stop");
		if (!again) t.decoder = decoder();
		t.ended = false;
		t.raw = [];
		only(t.notes);
		tools_of(path, body);
		truth(t, r, "asking");
		try {
			const answer = await ask(path, sent, running.signal);
			for await (const data of events(answer)) {
				if (t.raw.length < 5000) t.raw.push(data);
				if (data === "[DONE]") break;
				const e = JSON.parse(data), choice = e.choices?.[0];
				if (e.error) throw new Refused(e.error.code, e.error.message);
				if (choice?.prompt_token_ids && !again) t.prompt = choice.prompt_token_ids;
				if (e.prompt_token_ids && !again) t.prompt = e.prompt_token_ids;
				if (e.timings) r.timings = e.timings;
				if (e.usage) r.usage = e.usage;
				if (!choice) continue;
				if (choice.token_ids?.length || choice.text || choice.delta?.content) {
					r.last = performance.now();
					r.first ||= r.last;
					r.n += choice.token_ids?.length || 1;
				}
				if (chat) take_chat(t, choice); else take_completion(t, choice);
				if (choice.finish_reason) r.finish = choice.finish_reason;
				truth(t, r, "answering");
				down();
			}
			truth(t, r, "");
		} catch (e) {
			const stopped = e.name === "AbortError";
			if (!stopped) t.body.append(h("p", { class: "error" }, e.message));
			truth(t, r, stopped ? "stopped" : "refused");
		}
		running = null;
		box.send.textContent = "Send";
		box.send.classList.remove("stop");
		r.end = Date.now() / 1e3;
		const finish = () => { const at = live.watchers.indexOf(watch); if (at >= 0) live.watchers.splice(at, 1); truth(t, r, r.how); };
		setTimeout(finish, 1600); // the next event of the daemon's figures has its last second
		raw_of(t);
		saw(t, path, body);
		box.again.hidden = false;
		box.text.focus();
	}

	// ---- the truth about a request ----

	const most = sums => Object.entries(sums).reduce((a, b) => b[1] > a[1] ? b : a, ["", 0])[0];
	function beside(r) {
		const s = r.samples.filter(e => e.running || e.steps);
		if (!s.length) return null;
		const sum = axis => s.reduce((all, e) => { for (const [k, v] of Object.entries(e[axis])) if (k !== "idle" && k !== "empty") all[k] = (all[k] || 0) + v; return all; }, {});
		return { others: Math.max(0, s.reduce((n, e) => n + e.running, 0) / s.length - 1), bound: most(sum("bound_s")), why: most(sum("why_s")) };
	}
	function truth(t, r, how) {
		r.how = how;
		const rows = [], row = (k, v) => rows.push(h("dt", null, k), h("dd", null, v));
		const g = r.timings, gap = r.n > 1 ? (r.last - r.first) / (r.n - 1) / 1e3 : null, b = beside(r);
		if (how) row("state", how);
		if (g) {
			row("waited", millis(g.queue_ms / 1e3));
			row("prompt", number(g.cache_n + g.prompt_n) + " tokens, " + number(g.cache_n) + " cached, in " + millis(g.prompt_ms / 1e3));
		} else if (r.usage) row("prompt", number(r.usage.prompt_tokens) + " tokens");
		if (r.first) row("first token", "after " + millis((r.first - r.begin) / 1e3) + " as seen here" + (g ? ", " + millis((g.queue_ms + g.prompt_ms) / 1e3) + " in the daemon" : ""));
		if (g && g.predicted_n > 1) row("then", millis(g.predicted_ms / 1e3 / (g.predicted_n - 1)) + " a token, " + few((g.predicted_n - 1) / g.predicted_ms * 1e3) + " tokens/s");
		else if (gap) row("then", millis(gap) + " a token, " + few(1 / gap) + " tokens/s");
		if (r.n) row("answer", number(r.usage?.completion_tokens ?? r.n) + " tokens" + (r.finish ? ", ended by " + r.finish : ""));
		if (b) {
			row("ran beside", b.others < 0.05 ? "nobody" : few(b.others) + " others on average");
			row("limited by", (b.bound ? { host: "the daemon itself", compute: "arithmetic", bandwidth: "memory bandwidth", pcie: "host copies", ranks: "waiting ranks", cores: "others on its cores" }[b.bound] : "nothing that was seen") +
				(b.why ? "; more rows by " + b.why : ""));
		}
		only(box.truth, rows);
	}

	function copyable(title, text) {
		const button = h("button", { type: "button", class: "quiet small", onclick: async () => {
			try { await navigator.clipboard.writeText(text); button.textContent = "copied"; } catch { button.textContent = "select it, and copy"; }
			setTimeout(() => { button.textContent = "copy"; }, 1500);
		} }, "copy");
		return h("details", null, h("summary", null, title), button, h("pre", null, text));
	}
	// The request as others would send it.
	function tools_of(path, body) {
		const url = new URL(base + path, location.href).href, quoted = JSON.stringify(body).replace(/'/g, "'\\''");
		const known = new Set(["model", "messages", "prompt", "temperature", "top_p", "max_tokens", "seed", "stop", "response_format", "tools"]);
		const py = (v, pad = "") => v === null ? "None" : v === true ? "True" : v === false ? "False" : Array.isArray(v) ?
			"[" + v.map(x => py(x, pad)).join(", ") + "]" : typeof v === "object" ? "{" + Object.entries(v).map(([k, x]) => JSON.stringify(k) + ": " + py(x, pad)).join(", ") + "}" : JSON.stringify(v);
		const args = Object.entries(body).filter(([k]) => known.has(k)).map(([k, v]) => "    " + k + "=" + py(v) + ",\n").join("");
		const extra = Object.fromEntries(Object.entries(body).filter(([k]) => !known.has(k)));
		only(box.copies,
			copyable("as curl", "curl " + url + " \\\n  -H 'Content-Type: application/json' \\\n" + (key.get() ? "  -H \"Authorization: Bearer $KEY\" \\\n" : "") + "  -d '" + quoted + "'"),
			copyable("as Python", "from openai import OpenAI\n\nclient = OpenAI(base_url=" + JSON.stringify(new URL(base + "v1", location.href).href) + ", api_key=" + (key.get() ? "KEY" : "\"none\"") + ")\n" +
				"answer = client." + (path.includes("chat") ? "chat.completions" : "completions") + ".create(\n" + (body.model ? "" : "    model=\"\",\n") + args +
				(Object.keys(extra).length ? "    extra_body=" + py(extra) + ",\n" : "") + ")\nprint(answer.choices[0]" + (path.includes("chat") ? ".message.content)" : ".text)")));
	}
	function raw_of(t) { only(box.raw, copyable("raw events (" + number(t.raw.length) + ")", t.raw.join("\n"))); }

	// What the model saw: the text of the prompt, and its tokens.
	function saw(t, path, body) {
		const out = h("div"), d = h("details", { ontoggle: async () => {
			if (!d.open || out.firstChild) return;
			try {
				const text = path.includes("chat") ? (await (await ask("apply-template", body)).json()).prompt : typeof body.prompt === "string" ? body.prompt : null;
				const ids = t.prompt || [];
				const shown = ids.slice(0, 2000), names = await Promise.all(shown.map(text_of));
				only(out, text !== null && h("pre", null, text), h("p", { class: "soft" }, number(ids.length) + " tokens" + (ids.length > shown.length ? ", the first " + shown.length : "") + ":"),
					h("p", { class: "ids" }, shown.map((id, i) => h("span", { title: "id " + id }, visible(names[i])))));
			} catch (e) {
				only(out, h("p", { class: "error" }, e.message));
			}
		} }, h("summary", null, "what the model saw"), out);
		only(box.saw, d);
	}

	// ---- the frame ----

	function answer() {
		const completion = box.mode === "completion";
		let body;
		try {
			body = completion ? { ...(model && { model: model.id }), prompt: turns.at(-1).content, ...sampling() } : chat_body();
		} catch (e) {
			box.error.textContent = e.message;
			return;
		}
		box.error.textContent = "";
		run(add_turn("assistant", ""), completion ? "v1/completions" : "v1/chat/completions", body);
	}
	function submit(e) {
		e.preventDefault();
		if (running) return running.abort();
		if (!box.text.value.trim()) return;
		box.follow = true;
		add_turn(box.mode === "completion" ? "prompt" : "user", box.text.value);
		box.text.value = "";
		grow();
		answer();
		down();
	}
	// Close the list of tokens that the user opened; else stop the answer.
	function escape(e) {
		if (e.key !== "Escape" || e.isComposing || box.talk.hidden) return;
		const chosen = box.stays && !box.pop.hidden;
		close_pop();
		if (!chosen) running?.abort();
	}
	function again() {
		if (running || !turns.length) return;
		if (turns.at(-1).role === "assistant") turns.pop().element.remove();
		answer();
	}
	function clear() {
		running?.abort();
		turns = [];
		close_pop();
		only(box.log, box.empty);
		box.empty.hidden = false;
		box.again.hidden = true;
		for (const b of [box.truth, box.copies, box.raw, box.saw]) only(b);
	}
	function grow() { box.text.style.height = "auto"; box.text.style.height = Math.min(240, box.text.scrollHeight + 2) + "px"; }
	function modes() {
		const names = ["chat", "completion"];
		box.mode = "chat";
		return h("div", { class: "switch", role: "group", "aria-label": "Kind of request" }, names.map(name => h("button", { type: "button", "aria-pressed": String(name === "chat"), onclick: e => {
			box.mode = name;
			for (const b of e.target.parentNode.children) b.setAttribute("aria-pressed", String(b === e.target));
			for (const f of ["system", "schema", "tools"]) fields[f].input.disabled = name === "completion";
			clear();
		} }, name)));
	}

	function open(main) {
		box.talk = main;
		box.empty = h("div", { class: "empty" }, h("p", null, "Ask something. Each token is shaded by how surprising it was: point at one for what else was likely, click it to go on from there."));
		box.log = h("div", { class: "log", role: "log", "aria-label": "The conversation", tabIndex: 0 }, box.empty);
		box.log.onscroll = () => { box.follow = box.log.scrollTop + box.log.clientHeight > box.log.scrollHeight - 40; if (!box.stays) close_pop(); };
		box.text = h("textarea", { id: "say", rows: 1, placeholder: "Ask something", "aria-label": "Your message", oninput: () => grow() });
		box.send = h("button", { class: "main" }, "Send");
		box.again = h("button", { type: "button", hidden: true, onclick: again }, "Again");
		box.error = h("p", { class: "error", role: "alert" });
		box.pop = h("div", { class: "pop", role: "dialog", "aria-label": "Other tokens", hidden: true });
		box.truth = h("dl", { class: "truth" });
		for (const name of ["copies", "raw", "saw"]) box[name] = h("div");
		box.text.onkeydown = e => {
			if (e.key !== "Enter" || e.shiftKey || e.isComposing) return;
			e.preventDefault();
			if (!running) box.form.requestSubmit();
		};
		box.form = h("form", { class: "say", onsubmit: submit }, box.text, box.send);
		const settings = h("details", { class: "card settings", open: innerWidth > 900 }, h("summary", null, "Settings ", h("small", null, "only what you set is sent")),
			setting("system", "system", h("textarea", { rows: 2, placeholder: "none" }), s => s || undefined),
			h("div", { class: "grid" }, numeric("temperature", "temperature", 0, 2, 0.1, ""), numeric("top_p", "top_p", 0, 1, 0.05, ""),
				numeric("max_tokens", "max_tokens", 1, 1e6, 1, "no limit"), numeric("seed", "seed", 0, 2 ** 53, 1, "random")),
			setting("stop", "stop", h("input", { placeholder: "none" }), s => s || undefined),
			setting("logprobs", "probabilities of tokens", h("input", { type: "checkbox", checked: true }), null),
			h("details", null, h("summary", null, "JSON schema, tools"),
				setting("schema", "schema of the answer", h("textarea", { rows: 3, spellcheck: false, placeholder: '{"type": "object", ..}' }), json("The schema")),
				setting("tools", "tools", h("textarea", { rows: 3, spellcheck: false, placeholder: '[{"type": "function", "function": {..}}]' }), json("The list of tools"))));
		main.append(h("div", { class: "talk" },
			h("section", { class: "left" }, box.log, box.error, box.form,
				h("div", { class: "bar" }, modes(), box.model = h("select", { "aria-label": "Model", hidden: true }), h("span", { class: "fill" }), box.again, h("button", { type: "button", onclick: clear }, "Clear"))),
			h("aside", null, settings, h("section", { class: "card" }, h("h2", null, "This request"), box.truth, box.saw, box.copies, box.raw))), box.pop);
		box.text.focus();
		addEventListener("keydown", escape);
		addEventListener("pointerdown", e => { if (!box.pop.hidden && !box.pop.contains(e.target) && !e.target.classList?.contains("token")) close_pop(); });
	}
	function models(all) {
		model = all[0];
		only(box.model, all.map(m => h("option", null, m.id)));
		box.model.hidden = all.length < 2;
		box.model.onchange = () => { model = all[box.model.selectedIndex]; hints(); };
		hints();
	}
	// What holds where a field is empty, as the server says it.
	function hints() {
		for (const name of ["temperature", "top_p", "max_tokens"])
			fields[name].input.placeholder = model.sampling?.[name] ?? (name === "max_tokens" ? "no limit" : "1");
	}
	return { open, models };
})();
