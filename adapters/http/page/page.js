// page.js - the frame: which view is shown, the key, the colours.

function askForKey(why) {
	$("ask-key").hidden = false;
	$("key-says").textContent = why;
	$("key-text").focus();
}

$("key").onclick = () => {
	const f = $("ask-key");
	f.hidden = !f.hidden;
	if (!f.hidden) $("key-text").focus();
};
$("ask-key").onsubmit = e => {
	e.preventDefault();
	key.set($("key-text").value.trim());
	$("key-text").value = "";
	$("ask-key").hidden = true;
	start();
};

const themes = ["system", "light", "dark"];
function theme(name) {
	document.documentElement.dataset.theme = name;
	localStorage.setItem("theme", name);
	$("theme").textContent = { system: "◐", light: "○", dark: "●" }[name];
	$("theme").setAttribute("aria-label", "Colours: " + (name === "system" ? "as the system" : name));
	$("theme").title = $("theme").getAttribute("aria-label");
}
$("theme").onclick = () => theme(themes[(themes.indexOf(document.documentElement.dataset.theme) + 1) % 3]);

function show() {
	const view = location.hash === "#live" ? "live" : "talk";
	for (const v of ["talk", "live"]) $(v).hidden = v !== view;
	for (const a of document.querySelectorAll("nav a"))
		if (a.hash === "#" + view) a.setAttribute("aria-current", "page");
		else a.removeAttribute("aria-current");
}
addEventListener("hashchange", show);

async function start() {
	try {
		const m = (await (await ask("v1/models")).json()).data[0];
		talk.model(m);
		$("state").textContent = m.id;
	} catch (e) {
		$("state").textContent = e.message;
	}
}

theme(themes.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "system");
talk.open($("talk"));
show();
start();
