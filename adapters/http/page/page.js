// page.js - the frame: which view is shown, the key, the colours.

function askForKey(why) {
	$("ask-key").hidden = false;
	$("key-says").textContent = key.get() ? why : "This server asks for an API key. It is kept in this tab until you close it.";
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
	try { localStorage.setItem("theme", name); } catch { }
	$("theme").textContent = { system: "◐", light: "○", dark: "●" }[name];
	$("theme").title = "Colours: " + (name === "system" ? "as the system" : name);
	$("theme").setAttribute("aria-label", $("theme").title);
	live.draw();
}
$("theme").onclick = () => theme(themes[(themes.indexOf(document.documentElement.dataset.theme) + 1) % 3]);

function show() {
	const view = location.hash === "#live" ? "live" : "talk";
	for (const v of ["talk", "live"]) $(v).hidden = v !== view;
	for (const a of document.querySelectorAll("nav a"))
		if (a.hash === "#" + view) a.setAttribute("aria-current", "page");
		else a.removeAttribute("aria-current");
	live.draw();
}
addEventListener("hashchange", show);

async function start() {
	try {
		talk.models((await (await ask("v1/models")).json()).data);
		$("key").textContent = key.get() ? "Key ✓" : "Key";
	} catch (e) {
		$("state").textContent = e.status === 401 ? "a key is needed" : e.message;
		$("state").className = "error";
		if (e.status === 401) return;
	}
	live.watch();
}

talk.open($("talk"));
live.open($("live"));
{
	let last = "system";
	try { last = localStorage.getItem("theme"); } catch { }
	theme(themes.includes(last) ? last : "system");
}
show();
start();
