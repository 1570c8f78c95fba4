/* programs.c - the programs that slipring connect knows, a row each. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "connect.h"

const struct program programs[N_PROGRAMS] = {
	{ .name = "claude",
	  .title = "Claude Code",
	  .api = API_MESSAGES,
	  .command = "claude",
	  .env = { "ANTHROPIC_BASE_URL={base}", "ANTHROPIC_AUTH_TOKEN={key}", "ANTHROPIC_MODEL={model}",
	           "ANTHROPIC_DEFAULT_OPUS_MODEL={model}", "ANTHROPIC_DEFAULT_SONNET_MODEL={model}",
	           "ANTHROPIC_DEFAULT_HAIKU_MODEL={model}", "CLAUDE_CODE_MAX_CONTEXT_TOKENS={context}",
	           "CLAUDE_CODE_ATTRIBUTION_HEADER=0" },
	  .settings = "--settings",
	  .file = ".claude/settings.json" },
	{ .name = "codex",
	  .title = "Codex CLI",
	  .api = API_RESPONSES,
	  .command = "codex",
	  .word = { "-c", "model_provider=slipring", "-c", "model_providers.slipring.name=Slipring", "-c",
	            "model_providers.slipring.base_url={v1}", "-c", "model_providers.slipring.wire_api=responses",
	            "-c", "model_providers.slipring.env_key=SLIPRING_API_KEY", "-c", "model={model}", "-c",
	            "model_context_window={context}", "-c", "web_search=disabled" },
	  .env = { "SLIPRING_API_KEY={key}" },
	  .use = "SLIPRING_API_KEY={key} codex --profile slipring",
	  .file = ".codex/slipring.config.toml",
	  .lines = "model_provider = \"slipring\"\n"
	           "model = \"{model}\"\n"
	           "model_context_window = {context}\n"
	           "web_search = \"disabled\"\n"
	           "\n"
	           "[model_providers.slipring]\n"
	           "name = \"Slipring\"\n"
	           "base_url = \"{v1}\"\n"
	           "wire_api = \"responses\"\n"
	           "env_key = \"SLIPRING_API_KEY\"\n" },
	{ .name = "opencode",
	  .title = "opencode",
	  .api = API_CHAT,
	  .file = ".config/opencode/opencode.json",
	  /* Without $schema opencode writes one into the file as it starts, and undo would leave that. */
	  .lines =
	      "{\"$schema\": \"https://opencode.ai/config.json\","
	      "\"provider\": {\"slipring\": {\"npm\": \"@ai-sdk/openai-compatible\", \"name\": \"Slipring\","
	      "\"options\": {\"baseURL\": \"{v1}\", \"apiKey\": \"{key}\"},"
	      "\"models\": {\"{model}\": {\"name\": \"{model}\","
	      "\"limit\": {\"context\": \"{context}\", \"output\": \"{output}\"}}}}},"
	      "\"model\": \"slipring/{model}\"}" },
	{ .name = "aider",
	  .title = "aider",
	  .api = API_CHAT,
	  .command = "aider",
	  .word = { "--model", "openai/{model}" },
	  .env = { "OPENAI_API_BASE={v1}", "OPENAI_API_KEY={key}" },
	  .file = ".aider.conf.yml",
	  .lines = "openai-api-base: \"{v1}\"\nopenai-api-key: \"{key}\"\nmodel: \"openai/{model}\"\n" },
	{ .name = "cline",
	  .title = "Cline",
	  .api = API_CHAT,
	  .fill = "API Provider:    OpenAI Compatible\nBase URL:        {v1}\nAPI Key:         {key}\n"
	          "Model ID:        {model}\nContext Window:  {context}\n" },
	{ .name = "continue",
	  .title = "Continue",
	  .api = API_CHAT,
	  .fill = "models:\n  - name: {model}\n    provider: openai\n    model: {model}\n    apiBase: {v1}\n"
	          "    apiKey: {key}\n    defaultCompletionOptions:\n      contextLength: {context}\n" },
	{ .name = "openwebui",
	  .title = "Open WebUI",
	  .api = API_CHAT,
	  .env = { "OPENAI_API_BASE_URL={v1}", "OPENAI_API_KEY={key}", "ENABLE_OLLAMA_API=false" } },
	{ .name = "env",
	  .title = "OpenAI's and Anthropic's own libraries",
	  .api = API_CHAT,
	  .env = { "OPENAI_BASE_URL={v1}", "OPENAI_API_KEY={key}", "ANTHROPIC_BASE_URL={base}",
	           "ANTHROPIC_API_KEY={key}" } },
};

/* ---- words in braces ------------------------------------------------------------------------------- */

/* The value of the word that text begins with, and how long that word is; NULL: it begins with none. */
static const char *value_of(const struct target *t, const char *text, size_t *len, char number[2][32],
                            const char **behind)
{
	*behind = "";
	snprintf(number[0], 32, "%lld", t->context);
	snprintf(number[1], 32, "%lld", t->context / 4);
	const struct {
		const char *word, *value, *behind;
	} all[] = {
		{ "{base}", t->base, "" }, { "{v1}", t->base, "/v1" },  { "{model}", t->model, "" },
		{ "{key}", t->key, "" },   { "{context}", number[0], "" },
		{ "{output}", number[1], "" },
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		*len = strlen(all[i].word);
		if (!strncmp(text, all[i].word, *len)) {
			*behind = all[i].behind;
			return all[i].value;
		}
	}
	return NULL;
}

static void put(FILE *to, const char *s, const char *quote)
{
	for (; *s; s++) {
		if (quote && strchr(quote, *s))
			fputc('\\', to);
		fputc(*s, to);
	}
}

char *connect_fill(const struct target *t, const char *text, const char *quote)
{
	char *out = NULL, number[2][32];
	size_t n, len;
	FILE *f = open_memstream(&out, &n);

	if (!f)
		return NULL;
	while (*text) {
		const char *behind, *value = value_of(t, text, &len, number, &behind);

		if (value) {
			put(f, value, quote);
			fputs(behind, f);
			text += len;
		} else {
			fputc(*text++, f);
		}
	}
	return fclose(f) ? NULL : out;
}

/* A copy of j in which keys and strings are filled in; "{context}" and "{output}" alone are numbers. */
static json_t *fill_tree(const struct target *t, const json_t *j)
{
	json_t *out, *v;
	const char *key;
	char *s;

	if (json_is_object(j)) {
		out = json_object();
		json_object_foreach((json_t *)j, key, v)
		{
			s = connect_fill(t, key, NULL);
			json_object_set_new(out, s ? s : key, fill_tree(t, v));
			free(s);
		}
		return out;
	}
	if (!strcmp(json_string_value(j), "{context}"))
		return json_integer(t->context);
	if (!strcmp(json_string_value(j), "{output}"))
		return json_integer(t->context / 4);
	s = connect_fill(t, json_string_value(j), NULL);
	out = json_string(s ? s : "");
	free(s);
	return out;
}

bool connect_is_json(const struct program *p)
{
	size_t n = p->file ? strlen(p->file) : 0;

	return n > 5 && !strcmp(p->file + n - 5, ".json");
}

json_t *connect_tree(const struct target *t, const struct program *p)
{
	json_t *rows, *env, *out;

	if (p->lines) {
		rows = json_loads(p->lines, 0, NULL);
		out = fill_tree(t, rows);
		json_decref(rows);
		return out;
	}
	env = json_object();
	for (int i = 0; p->env[i]; i++) {
		const char *is = strchr(p->env[i], '=');
		char *value = connect_fill(t, is + 1, NULL), name[64];

		snprintf(name, sizeof(name), "%.*s", (int)(is - p->env[i]), p->env[i]);
		json_object_set_new(env, name, json_string(value ? value : ""));
		free(value);
	}
	return json_pack("{s:o}", "env", env);
}
