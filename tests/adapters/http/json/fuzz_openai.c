/* LINK: @ask adapters/http/json/number.c -ljansson */
/* fuzz_openai.c - any bytes as the body of any JSON request: parsed or refused with a whole error,
 * never more.  The first byte picks the endpoint.  Prompts are not tokenized here: the tokenizer
 * has a fuzzer of its own.
 */
#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "adapters/http/json/openai.h"
#include "adapters/text/slipring-text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const struct sr_text_info info = { .vocab = 1000, .bos = -1, .eos = 2, .chat_template = "" };

const struct sr_text_info *sr_text_info(const struct sr_text *t) { (void)t; return &info; }
int sr_text_piece(const struct sr_text *t, int32_t id, const char **out, bool *special)
{
	(void)t;
	(void)id;
	(void)special;
	*out = "x";
	return 1;
}

/* A template that prints all it can see. */
static const char all[] = "{{ [messages, add_generation_prompt, tools, documents, reasoning_effort | default(none), "
	"bos_token] | tojson }}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static const char *const names[] = { "m" };
	static struct chat_template *template;
	struct ask_limits l = {
		.response_role = "assistant", .vocab = 1000, .context = 4096, .max_logprobs = 20,
		.stream_interval = 1, .names = names, .n_names = 1,
		.defaults = { 1, 1, 0, 1, 0, -1, -1, "" },
	};
	struct out o = { 0 };
	struct problem p;
	struct ask a;
	char why[200];
	int r;

	if (!n)
		return 0;
	if (!template)
		assert(!chat_template_open(&template, all, why, sizeof(why)));
	l.chat = template;
	r = ask_parse(&a, (enum ask_kind)(data[0] % 4), (const char *)data + 1, n - 1, &l, &p);
	if (!r && a.chat.messages)
		r = ask_render(&a, &l, &p);
	if (r) {
		json_t *back;

		assert(p.status >= 400 && p.status < 600 && p.message[0]);
		problem_json(&o, &p);
		back = json_loadb(o.p, o.n, 0, NULL); /* an error is JSON, whatever it quotes */
		assert(back);
		json_decref(back);
	} else {
		assert(a.kind != ASK_COMPLETION || (a.n >= 1 && a.n * a.n_prompts <= ASK_CHOICES));
		assert(a.n_bias <= SR_LIST_MAX && a.stop_ids.n <= SR_LIST_MAX && a.allowed.n <= SR_LIST_MAX);
		ask_slim(&a);
		assert(!a.n_stop || a.stop[a.n_stop - 1][0] || a.stop_len[a.n_stop - 1]);
	}
	out_free(&o);
	ask_free(&a);
	return 0;
}
