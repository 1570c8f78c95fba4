/* agent_fuzz.h - a fuzzer of an agents' API: any bytes are a chat, or refused with a whole error. */
#ifndef AGENT_FUZZ_H
#define AGENT_FUZZ_H

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "adapters/http/json/openai.h"
#include "adapters/text/slipring-text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const struct sr_text_info info = { .vocab = 1000, .bos = -1, .eos = 2, .chat_template = "" };

const struct sr_text_info *sr_text_info(const struct sr_text *t) { (void)t; return &info; }
int64_t sr_text_encode(const struct sr_text *t, const char *s, size_t n, int flags, int32_t *ids,
                       size_t cap, size_t limit)
{
	(void)t, (void)s, (void)n, (void)flags, (void)ids, (void)cap, (void)limit;
	return 0;
}
int64_t sr_text_encode_pair(const struct sr_text *t, const char *a, size_t n_a, const char *b, size_t n_b, int flags,
                            size_t most, int32_t *ids, size_t cap, uint32_t *second)
{
	(void)t, (void)a, (void)n_a, (void)b, (void)n_b, (void)flags, (void)most, (void)ids, (void)cap;
	*second = 0;
	return -ENOTSUP;
}
int sr_text_piece(const struct sr_text *t, int32_t id, const char **out, bool *special)
{
	(void)t;
	(void)id;
	(void)special;
	*out = "x";
	return 1;
}

/* Templates: one prints all that it can see, one takes no system message and no other order. */
static const char *const templates[] = {
	"{{ [messages, add_generation_prompt, tools, documents, bos_token] | tojson }}",
	"{% for m in messages %}{% if m.role != ('user' if loop.index0 % 2 == 0 else 'assistant') %}"
	"{{ raise_exception('no') }}"
	"{% endif %}{{ m.content }}{% endfor %}",
};

static inline int agent_fuzz(ask_translate *translate, const uint8_t *data, size_t n)
{
	static const char *const names[] = { "m" };
	static struct chat_template *template[2];
	static struct calls *calls;
	struct ask_limits l = {
		.response_role = "assistant",
		.vocab = 1000,
		.context = 4096,
		.max_logprobs = 20,
		.stream_interval = 1,
		.names = names,
		.n_names = 1,
		.defaults = { 1, 1, 0, 1, 0, -1, -1, "" },
	};
	struct problem p;
	struct ask a;
	char why[200];
	int r;

	if (!n)
		return 0;
	for (int i = 0; i < 2; i++)
		assert(template[i] || !chat_template_open(&template[i], templates[i], why, sizeof(why)));
	assert(calls || !calls_open(&calls, "generic", "qwen3", NULL, NULL, why, sizeof(why)));
	l.chat = template[data[0] & 1];
	l.calls = data[0] & 2 ? calls : NULL;
	r = ask_agent(&a, translate, (const char *)data + 1, n - 1, &l, &p);
	if (!r) {
		assert(a.chat.n_messages && a.n == 1);
		r = ask_render(&a, &l, &p);
	}
	if (r) {
		assert(p.status >= 400 && p.status < 600 && p.message[0]);
	} else {
		assert(a.n_stop <= ASK_STOPS && a.prompt[0].n_text < 64 * n + 65536);
		ask_slim(&a);
	}
	ask_free(&a);
	return 0;
}

#endif
