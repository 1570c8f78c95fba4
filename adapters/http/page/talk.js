// talk.js - a chat with the model.

const talk = (() => {
	let model = null, stop = null;
	const turns = [];
	const log = h("div", { class: "log", role: "log", "aria-label": "The conversation" });
	const text = h("textarea", { id: "say", rows: 2, placeholder: "Ask something", "aria-label": "Your message" });
	const send = h("button", { class: "main" }, "Send");
	const form = h("form", { class: "say" }, text, send);

	function turn(role, content) {
		const t = { role, content, body: h("div", { class: "text" }, content) };
		turns.push(t);
		log.append(h("article", { class: "turn " + role }, h("h3", null, role === "user" ? "You" : "Model"), t.body));
		return t;
	}

	async function answer() {
		const messages = turns.map(({ role, content }) => ({ role, content }));
		const t = turn("assistant", "");
		stop = new AbortController();
		send.textContent = "Stop";
		try {
			const r = await ask("v1/chat/completions", { model: model?.id, messages, stream: true }, stop.signal);
			for await (const data of events(r)) {
				if (data === "[DONE]") break;
				const e = JSON.parse(data);
				if (e.error) throw new Refused(e.error.code, e.error.message);
				const more = e.choices[0]?.delta?.content;
				if (more) {
					t.content += more;
					t.body.append(more);
				}
			}
		} catch (e) {
			if (e.name !== "AbortError") t.body.append(h("p", { class: "error" }, e.message));
		}
		stop = null;
		send.textContent = "Send";
	}

	form.onsubmit = e => {
		e.preventDefault();
		if (stop) return stop.abort();
		if (!text.value.trim()) return;
		turn("user", text.value);
		text.value = "";
		answer();
	};
	text.onkeydown = e => {
		if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
			e.preventDefault();
			if (!stop) form.requestSubmit();
		}
	};
	return {
		open: main => main.append(log, form),
		model: m => { model = m; },
	};
})();
