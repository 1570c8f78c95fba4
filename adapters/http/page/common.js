// common.js - what all views share: elements, numbers as text, requests to this server.
// Text from outside (a model's, a client's) only ever becomes text: by h() and textContent, never by parsing HTML.
"use strict";
const $ = id => document.getElementById(id);

// An element: h("p", {class: "x", onclick: f}, "text", child, ..).  null, undefined and false are left out.
function h(tag, props, ...children) {
	const e = document.createElement(tag);
	for (const [k, v] of Object.entries(props || {})) {
		if (k.startsWith("on")) e.addEventListener(k.slice(2), v);
		else if (k === "style") for (const [n, s] of Object.entries(v)) e.style.setProperty(n, s);
		else if (k in e && k !== "list" && k !== "form") e[k] = v;
		else if (v !== null && v !== false) e.setAttribute(k, v === true ? "" : v);
	}
	e.append(...kept(children));
	return e;
}

const kept = children => children.flat().filter(c => c !== null && c !== undefined && c !== false);
const only = (e, ...children) => e.replaceChildren(...kept(children));

// ---- numbers ----

const number = (x, digits = 0) => x === null || x === undefined || Number.isNaN(x) ? "–" :
	x.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const few = x => number(x, x && Math.abs(x) < 10 ? 1 : 0);
const percent = x => x === null || x === undefined ? "–" : (x * 100).toFixed(x < 0.1 && x > 0 ? 1 : 0) + " %";
const millis = s => s === null || s === undefined ? "–" :
	s === 0 ? "0 ms" : s < 0.01 ? (s * 1e3).toFixed(2) + " ms" : s < 0.1 ? (s * 1e3).toFixed(1) + " ms" :
	s < 10 ? number(s * 1e3) + " ms" : number(s, 1) + " s";
const bytes = n => n >= 2 ** 30 ? (n / 2 ** 30).toFixed(2) + " GiB" : number(n / 2 ** 20) + " MiB";
const clock = unix => new Date(unix * 1e3).toLocaleTimeString("en-GB");
function age(s) {
	if (s >= 86400) return Math.floor(s / 86400) + " d " + Math.floor(s % 86400 / 3600) + " h";
	if (s >= 3600) return Math.floor(s / 3600) + " h " + Math.floor(s % 3600 / 60) + " min";
	return s >= 60 ? Math.floor(s / 60) + " min " + Math.floor(s % 60) + " s" : Math.floor(s) + " s";
}

// ---- requests ----

// Paths are relative, so that the page works below a proxy's path.
const base = location.pathname.replace(/(ui)?\/?$/, "");
const key = { get: () => sessionStorage.getItem("key") || "", set: v => sessionStorage.setItem("key", v) };

class Refused extends Error {
	constructor(status, message) { super(message); this.status = status; }
}

// The answer to a request; a refusal is thrown in the server's own words.
async function ask(path, body, signal) {
	const headers = {};
	if (key.get()) headers.authorization = "Bearer " + key.get();
	if (body !== undefined) headers["content-type"] = "application/json";
	const r = await fetch(base + path, { method: body === undefined ? "GET" : "POST", headers, signal,
		body: body === undefined ? undefined : JSON.stringify(body), cache: "no-store", credentials: "omit" });
	if (r.ok) return r;
	const text = await r.text();
	let message = text.slice(0, 400);
	try { const e = JSON.parse(text); message = e.error?.message || e.detail || message; } catch { }
	if (r.status === 401) askForKey(message);
	throw new Refused(r.status, message || "HTTP " + r.status);
}

// The events of a stream, as text.  The body is read to its end or until it is cancelled.
async function* events(response) {
	const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
	let rest = "";
	try {
		for (;;) {
			const { value, done } = await reader.read();
			if (done) return;
			rest += value;
			let at;
			while ((at = rest.indexOf("\n\n")) >= 0) {
				const event = rest.slice(0, at);
				rest = rest.slice(at + 2);
				const data = event.split("\n").filter(l => l.startsWith("data:")).map(l => l.slice(5).trim());
				if (data.length) yield data.join("\n");
			}
		}
	} finally {
		reader.cancel().catch(() => { });
	}
}
