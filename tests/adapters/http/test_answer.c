/* LINK: @ask adapters/http/json/number.c adapters/http/json/prompts.c adapters/http/choice.c adapters/http/said.c adapters/http/events.c adapters/http/timings.c adapters/http/chat.c adapters/http/completions.c -ljansson */
/* test_answer.c - the bytes of events and answers, as vLLM sends them; stop strings across token
 * boundaries. */
#include "tests/rig/openai_rig.h"
#include "adapters/http/dialect.h"

/* ---- events ---- */

static struct request *begin(enum ask_kind kind, const char *body)
{
	struct request *r = calloc(1, sizeof(*r));
	int i;

	r->dialect = kind == ASK_CHAT ? &dialect_chat : &dialect_completions;
	r->limits = limits();
	take(&r->ask, kind, body);
	r->model = "m";
	r->fingerprint = "f";
	r->created = 7;
	snprintf(r->id, sizeof(r->id), "id");
	r->n_choices = (int)r->ask.n * r->ask.n_prompts;
	r->choice = calloc((size_t)r->n_choices, sizeof(*r->choice));
	for (i = 0; i < r->n_choices; i++) {
		choice_init(&r->choice[i], true);
		r->choice[i].index = i;
		r->choice[i].prompt = i / (int)r->ask.n;
	}
	assert_int_equal(stops_init(&r->stops, &r->ask), 0);
	r->scored = calloc((size_t)r->ask.n_prompts, sizeof(*r->scored));
	event_start(r);
	return r;
}

static void finish(struct request *r)
{
	int i;

	for (i = 0; i < r->n_choices; i++)
		choice_free(&r->choice[i]);
	free(r->choice);
	for (i = 0; i < r->ask.n_prompts; i++)
		out_free(&r->scored[i].scores.bytes);
	free(r->scored);
	stops_free(&r->stops);
	ask_free(&r->ask);
	out_free(&r->head);
	out_free(&r->event);
	free(r);
}

static bool push(struct request *r, struct choice *c, int32_t id, float logprob)
{
	struct sr_token t = { .kind = SR_TOKEN, .id = id, .rank = 1, .logprob = logprob, .n_top = 2,
	                      .n_here = 2, .top = { { id, logprob }, { 'z', -2.5f } } };

	c->n_tokens++;
	if (r->ask.logprobs != ASK_NONE)
		scores_add(&c->scores, &t);
	if (r->ask.return_token_ids)
		out_bytes(&c->ids, &id, sizeof(id));
	return choice_text(c, &r->stops, toy, id, (uint32_t)r->ask.min_tokens);
}

/* Finish the event that was begun, in all its slices: into r->event. */
static void write_all(struct request *r)
{
	struct out all = { 0 };
	bool last;

	do {
		last = event_write(r);
		assert_false(r->event.failed);
		out_bytes(&all, r->event.p, r->event.n);
	} while (!last);
	out_free(&r->event);
	r->event = all;
}

static void event_is(struct request *r, const char *want)
{
	write_all(r);
	out_bytes(&r->event, "", 1);
	assert_string_equal(r->event.p, want);
}

static void bytes_are(struct request *r, const char *want)
{
	out_bytes(&r->event, "", 1);
	assert_false(r->event.failed);
	assert_string_equal(r->event.p, want);
}

#define HEAD "{\"id\":\"id\",\"object\":\"text_completion\",\"created\":7,\"model\":\"m\",\"choices\":["
#define CHAT "{\"id\":\"id\",\"object\":\"chat.completion.chunk\",\"created\":7,\"model\":\"m\",\"choices\":["

static void completion_stream(void **state)
{
	struct request *r = begin(ASK_COMPLETION, "{" P ",\"stream\":true}");
	struct choice *c = r->choice;

	(void)state;
	push(r, c, '"', 0);
	r->dialect->part(r, c);
	event_is(r, "data: " HEAD "{\"index\":0,\"text\":\"\\\"\",\"logprobs\":null,\"finish_reason\":null,"
	          "\"stop_reason\":null,\"prompt_token_ids\":null,\"token_ids\":null}]}\n\n");
	push(r, c, AB, 0);
	c->state = CHOICE_ENDED;
	c->finish = FINISH_LENGTH;
	r->dialect->part(r, c);
	event_is(r, "data: " HEAD "{\"index\":0,\"text\":\"ab\",\"logprobs\":null,\"finish_reason\":\"length\","
	          "\"stop_reason\":null,\"prompt_token_ids\":null,\"token_ids\":null}],"
	          "\"system_fingerprint\":\"f\"}\n\n");
	finish(r);
}

static void completion_stream_usage(void **state)
{
	struct request *r = begin(ASK_COMPLETION, "{" P ",\"stream\":true,\"stream_options\":"
	                          "{\"include_usage\":true,\"continuous_usage_stats\":true},\"return_token_ids\":true}");
	struct choice *c = r->choice;

	(void)state;
	push(r, c, 'q', 0);
	c->state = CHOICE_ENDED;
	c->finish = FINISH_STOP;
	c->stop_id = 9;
	r->dialect->part(r, c);
	event_is(r, "data: " HEAD "{\"index\":0,\"text\":\"q\",\"logprobs\":null,\"finish_reason\":\"stop\","
	          "\"stop_reason\":9,\"prompt_token_ids\":[120],\"token_ids\":[113]}],"
	          "\"usage\":{\"prompt_tokens\":1,\"total_tokens\":2,\"completion_tokens\":1}}\n\n");
	r->dialect->usage(r);
	event_is(r, "data: " HEAD "],\"usage\":{\"prompt_tokens\":1,\"total_tokens\":2,\"completion_tokens\":1},"
	          "\"system_fingerprint\":\"f\"}\n\n");
	finish(r);
}

static void completion_echo_logprobs(void **state)
{
	struct request *r = begin(ASK_COMPLETION, "{\"prompt\":\"xy\",\"stream\":true,\"echo\":true,\"logprobs\":1}");
	struct choice *c = r->choice;
	struct sr_token t = { .kind = SR_PROMPT, .id = 'y', .rank = 3, .logprob = -11.586777687072754f,
	                      .n_top = 1, .n_here = 1, .top = { { 'w', -0.83677738904953f } } };

	(void)state;
	scores_add_plain(&r->scored->scores, 'x');
	scores_add(&r->scored->scores, &t);
	push(r, c, AB, -0.26282957196235657f);
	r->dialect->part(r, c);
	event_is(r, "data: " HEAD "{\"index\":0,\"text\":\"xyab\",\"logprobs\":{\"text_offset\":[0,1,2],"
	          "\"token_logprobs\":[null,-11.586777687072754,-0.26282957196235657],"
	          "\"tokens\":[\"x\",\"y\",\"ab\"],\"top_logprobs\":[null,"
	          "{\"y\":-11.586777687072754,\"w\":-0.83677738904953},{\"ab\":-0.26282957196235657,\"z\":-2.5}]},"
	          "\"finish_reason\":null,\"stop_reason\":null,\"prompt_token_ids\":[120,121],\"token_ids\":null}]}\n\n");
	push(r, c, 'q', -INFINITY);
	r->dialect->part(r, c);
	event_is(r, "data: " HEAD "{\"index\":0,\"text\":\"q\",\"logprobs\":{\"text_offset\":[4],"
	          "\"token_logprobs\":[-9999.0],\"tokens\":[\"q\"],\"top_logprobs\":[{\"q\":-9999.0,\"z\":-2.5}]},"
	          "\"finish_reason\":null,\"stop_reason\":null,\"prompt_token_ids\":null,\"token_ids\":null}]}\n\n");
	finish(r);
}

static void chat_stream(void **state)
{
	struct request *r = begin(ASK_CHAT, "{" M ",\"stream\":true,\"logprobs\":true,\"top_logprobs\":1}");
	struct choice *c = r->choice;

	(void)state;
	assert_true(r->dialect->begin(r, 0));
	event_is(r, "data: " CHAT "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
	          "\"finish_reason\":null}],\"prompt_token_ids\":null,\"prompt_text\":null}\n\n");
	push(r, c, 'L', -1.906170129776001f);
	r->dialect->part(r, c);
	event_is(r, "data: " CHAT "{\"index\":0,\"delta\":{\"content\":\"L\"},\"logprobs\":{\"content\":[{\"token\":\"L\","
	          "\"logprob\":-1.906170129776001,\"bytes\":[76],\"top_logprobs\":[{\"token\":\"L\","
	          "\"logprob\":-1.906170129776001,\"bytes\":[76]}]}]},\"finish_reason\":null,\"token_ids\":null}]}\n\n");
	c->state = CHOICE_ENDED;
	c->finish = FINISH_LENGTH;
	r->dialect->part(r, c);
	event_is(r, "data: " CHAT "{\"index\":0,\"delta\":{\"content\":\"\"},\"logprobs\":null,"
	          "\"finish_reason\":\"length\",\"stop_reason\":null,\"token_ids\":null}],"
	          "\"system_fingerprint\":\"f\"}\n\n");
	finish(r);
}

/* Before the first part: each choice's role, then its echo of the prompt. */
static void chat_begins(void **state)
{
	struct request *r = begin(ASK_CHAT, "{" M ",\"stream\":true,\"n\":2}");
	json_t *said = json_string("Hi \"x");
	char want[256];

	(void)state;
	for (int i = 0; i < 2; i++) {
		assert_true(r->dialect->begin(r, i));
		snprintf(want, sizeof(want), "data: " CHAT "{\"index\":%d,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
		         "\"logprobs\":null,\"finish_reason\":null}],\"prompt_token_ids\":null,\"prompt_text\":null}\n\n", i);
		event_is(r, want);
	}
	assert_false(r->dialect->begin(r, 2));
	r->ask.last_content = said;
	for (int i = 0; i < 2; i++) {
		assert_true(r->dialect->begin(r, 2 + i));
		snprintf(want, sizeof(want), "data: " CHAT "{\"index\":%d,\"delta\":{\"content\":\"Hi \\\"x\"},"
		         "\"logprobs\":null,\"finish_reason\":null}]}\n\n", i);
		event_is(r, want);
	}
	assert_false(r->dialect->begin(r, 4));
	json_decref(said);
	finish(r);
}

static void whole_chat(void **state)
{
	struct request *r = begin(ASK_CHAT, "{" M "}");
	struct choice *c = r->choice;

	(void)state;
	push(r, c, 'L', 0);
	c->state = CHOICE_ENDED;
	c->finish = FINISH_STOP;
	choice_flush(c);
	r->dialect->whole(r);
	event_is(r, "{\"id\":\"id\",\"object\":\"chat.completion\",\"created\":7,\"model\":\"m\",\"choices\":[{\"index\":0,"
	          "\"message\":{\"role\":\"assistant\",\"content\":\"L\",\"refusal\":null,\"annotations\":null,"
	          "\"audio\":null,\"function_call\":null,\"reasoning\":null},\"logprobs\":null,"
	          "\"finish_reason\":\"stop\",\"stop_reason\":null,\"token_ids\":null,\"routed_experts\":null}],"
	          "\"service_tier\":null,\"system_fingerprint\":\"f\",\"usage\":{\"prompt_tokens\":9,"
	          "\"total_tokens\":10,\"completion_tokens\":1,\"prompt_tokens_details\":null,"
	          "\"completion_tokens_details\":null},\"prompt_logprobs\":null,\"prompt_token_ids\":null,"
	          "\"prompt_text\":null,\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null}");
	finish(r);
}

static void errors(void **state)
{
	struct request *r = begin(ASK_COMPLETION, "{" P "}");
	struct problem p;

	(void)state;
	problem_set(&p, 500, "InternalServerError", NULL, "a \"b\"");
	r->dialect->problem(r, &p);
	bytes_are(r, "data: {\"error\": {\"message\": \"a \\\"b\\\"\", \"type\": \"InternalServerError\", "
	          "\"param\": null, \"code\": 500}}\n\n");
	out_reset(&r->event);
	problem_json(&r->event, &p);
	bytes_are(r, "{\"error\":{\"message\":\"a \\\"b\\\"\",\"type\":\"InternalServerError\",\"param\":null,"
	          "\"code\":500}}");
	finish(r);
}

/* ---- stop strings ---- */

static void stop_strings(void **state)
{
	static const struct { const char *stops, *pushed, *text, *found; int extra; } cases[] = {
		/* stops; text pushed byte by byte; all output; the stop that was found */
		{ "[\"END\"]", "one EN", "one ", NULL, 0 },           /* held back: may begin a stop string */
		{ "[\"END\"]", "one ENx", "one ENx", NULL, 0 },
		{ "[\"END\"]", "one ENDED", "one ", "END", 0 },
		{ "[\"aab\"]", "aaab", "a", "aab", 0 },               /* overlapping beginnings */
		{ "[\"xyz\",\"y\"]", "wxyz", "wx", "y", 0 },          /* the first to end wins */
		{ "[\"bc\",\"abc\"]", "abc", "a", "bc", 0 },          /* both end at once: the first in the list */
		{ "[\"\xc3\xa9\"]", "caf\xc3\xa9!", "caf", "\xc3\xa9", 0 },
		{ "\"one\"", "once one", "once ", "one", 0 },
		{ "[\"END\"]", "one END", "one END", "END", 1 },      /* include_stop_str_in_output */
	};
	size_t i, k;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char body[128], given[64] = "";
		struct request *r;
		bool found = false;

		snprintf(body, sizeof(body), "{" P ",\"stop\":%s,\"include_stop_str_in_output\":%s}", cases[i].stops,
		         cases[i].extra ? "true" : "false");
		r = begin(ASK_COMPLETION, body);
		for (k = 0; cases[i].pushed[k] && !found; k++) {
			struct choice *c = r->choice;

			found = push(r, c, (unsigned char)cases[i].pushed[k], 0);
			snprintf(given + strlen(given), sizeof(given) - strlen(given), "%.*s", (int)c->ready, c->text.p);
			r->dialect->part(r, c);
			write_all(r);
		}
		assert_string_equal(given, cases[i].text);
		assert_int_equal(found, cases[i].found != NULL);
		if (found)
			assert_string_equal(r->choice[0].stop_string, cases[i].found);
		finish(r);
	}
}

/* Before min_tokens a stop string is text; one that ends right after counts. */
static void stop_after_min_tokens(void **state)
{
	struct request *r = begin(ASK_COMPLETION, "{" P ",\"stop\":\"x\",\"min_tokens\":2}");

	(void)state;
	assert_false(push(r, r->choice, 'x', 0));
	assert_false(push(r, r->choice, 'x', 0));
	assert_true(push(r, r->choice, 'x', 0));
	assert_int_equal(r->choice[0].ready, 2);
	finish(r);
}

/* Half a character is held back until its other half; at the end it is U+FFFD, but not after a stop string. */
static void half_a_character(void **state)
{
	struct request *r = begin(ASK_COMPLETION, "{" P ",\"stop\":\"x\"}");
	struct choice *c = r->choice;

	(void)state;
	push(r, c, 'a', 0);
	push(r, c, HALF, 0);
	assert_int_equal(c->ready, 1);
	choice_flush(c);
	assert_int_equal(c->ready, 4);
	assert_memory_equal(c->text.p, "a\xef\xbf\xbd", 4);
	push(r, c, HALF, 0);
	c->stop_string = "x";
	choice_flush(c);
	assert_int_equal(c->ready, 4);
	finish(r);
}

/* If any part found no memory, the answer is not whole. */
static void lost(void **state)
{
	for (int i = 0; i < 4; i++) {
		struct choice c;

		choice_init(&c, true);
		c.text.failed = i == 1;
		c.scores.bytes.failed = i == 2;
		c.ids.failed = i == 3;
		assert_int_equal(choice_lost(&c), i > 0);
	}
	(void)state;
}

/* ---- bytes ---- */

static void json_bytes(void **state)
{
	static const struct { const char *in, *out; } text[] = {
		{ "a\"\\\b\f\n\r\t\x01\x7f", "\"a\\\"\\\\\\b\\f\\n\\r\\t\\u0001\x7f\"" },
		{ "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"" },
		{ "a\xff" "b\xc3", "\"a\xef\xbf\xbd" "b\xef\xbf\xbd\"" },
		{ "\xed\xa0\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"" },
	};
	static const struct { double v; const char *out; } number[] = {
		{ 0, "0.0" }, { 1, "1.0" }, { -0.5, "-0.5" }, { 0.1, "0.1" }, { (double)0.1f, "0.10000000149011612" },
		{ -INFINITY, "-9999.0" }, { NAN, "null" }, { 1e300, "1e+300" },
	};
	struct out o = { 0 };
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(text) / sizeof(text[0]); i++, out_reset(&o)) {
		out_json_str(&o, text[i].in);
		out_bytes(&o, "", 1);
		assert_string_equal(o.p, text[i].out);
	}
	for (i = 0; i < sizeof(number) / sizeof(number[0]); i++, out_reset(&o)) {
		out_double(&o, number[i].v);
		out_bytes(&o, "", 1);
		assert_string_equal(o.p, number[i].out);
	}
	out_int(&o, INT64_MIN);
	out_bytes(&o, "", 1);
	assert_string_equal(o.p, "-9223372036854775808");
	out_free(&o);
	assert_int_equal(utf8_count("a\xc3\xa9\xff", 4), 3);
}

/* ---- long answers ---- */

/* A packed token unpacks to the same values, also if they are in no order. */
static void scores_come_back(void **state)
{
	static const float value[] = { -0.5f, -0.5f, -1e-30f, -INFINITY, 3.5f, -9999.0f, 0, -0.0f, INFINITY };
	static const int32_t id[] = { 0, 49151, 49152, 0x3effff, 0x3f0000, INT32_MAX, -1, 7, 8 };
	struct sr_token t = { .id = INT32_MAX, .rank = UINT32_MAX, .logprob = -7.25f, .n_top = 9, .n_here = 9 };
	struct scores l = { 0 };
	struct score p;
	size_t at = 0;
	int i;

	(void)state;
	for (i = 0; i < 9; i++)
		t.top[i] = (struct sr_pair){ id[i], value[i] };
	scores_add_plain(&l, 5);
	scores_add(&l, &t);
	scores_add_plain(&l, 6);
	assert_true(scores_next(&l, l.bytes.n, &at, &p));
	assert_int_equal(p.id, 5);
	assert_int_equal(p.rank, 0);
	assert_true(scores_next(&l, l.bytes.n, &at, &p));
	assert_int_equal(p.id, INT32_MAX);
	assert_true(p.rank == UINT32_MAX && p.logprob == -7.25f);
	assert_int_equal(p.n_top, 9);
	for (i = 0; i < 9; i++) {
		assert_int_equal(p.top[i].id, id[i]);
		assert_memory_equal(&p.top[i].value, &value[i], sizeof(float));
	}
	assert_true(scores_next(&l, l.bytes.n, &at, &p));
	assert_int_equal(p.id, 6);
	assert_false(scores_next(&l, l.bytes.n, &at, &p));
	out_free(&l.bytes);
}

#define LONG "{\"prompt\":[[65,66,67],[68,69]],\"n\":2,\"echo\":true,\"logprobs\":5,\"prompt_logprobs\":5," \
	"\"return_token_ids\":false"
#define POSITIONS 20000

/* Prompts of POSITIONS tokens, with five alternatives each. */
static void lengthen(struct request *r)
{
	struct sr_token t = { .logprob = -0.1f, .rank = 2, .n_top = 5, .n_here = 5 };
	int i, k;

	for (i = 0; i < r->ask.n_prompts; i++) {
		struct prompt *q = &r->ask.prompt[i];

		free(q->ids.id);
		q->ids.n = POSITIONS;
		q->ids.id = calloc(POSITIONS, sizeof(*q->ids.id));
		for (k = 0; k < POSITIONS; k++)
			q->ids.id[k] = 'a' + k % 20;
		scores_add_plain(&r->scored[i].scores, q->ids.id[0]);
		for (k = 1; k < POSITIONS; k++) {
			t.id = q->ids.id[k];
			for (int e = 0; e < 5; e++)
				t.top[e] = (struct sr_pair){ 'A' + e, -1.0f / 3 * (float)(e + 1) };
			scores_add(&r->scored[i].scores, &t);
		}
	}
}

static json_t *in_slices(struct request *r, size_t skip)
{
	struct out all = { 0 };
	json_t *v;
	bool last;
	int n = 0;

	do {
		last = event_write(r);
		assert_false(r->event.failed);
		assert_in_range(r->event.n, 1, CONN_SLICE + 16 * 1024);
		out_bytes(&all, r->event.p, r->event.n);
		n++;
	} while (!last);
	assert_in_range(n, 10, 1000);
	v = json_loadb(all.p + skip, all.n - skip, 0, NULL);
	assert_non_null(v);
	out_free(&all);
	return v;
}

static void has_all(const json_t *choice, size_t extra)
{
	static const char *const list[] = { "text_offset", "token_logprobs", "tokens", "top_logprobs" };
	size_t i;

	for (i = 0; i < 4; i++)
		assert_int_equal(json_array_size(json_object_get(json_object_get(choice, "logprobs"), list[i])),
		                 POSITIONS + extra);
	assert_int_equal(json_string_length(json_object_get(choice, "text")), POSITIONS + extra);
}

/* Of an answer of megabytes, 64 KiB exist at a time; what has been written is freed. */
static void long_answer(void **state)
{
	struct request *r = begin(ASK_COMPLETION, LONG "}");
	json_t *v, *list;
	size_t i;

	(void)state;
	lengthen(r);
	for (i = 0; i < 4; i++) {
		push(r, &r->choice[i], 'q', -1);
		r->choice[i].finish = FINISH_LENGTH;
	}
	r->dialect->whole(r);
	v = in_slices(r, 0);
	list = json_object_get(v, "choices");
	assert_int_equal(json_array_size(list), 4);
	for (i = 0; i < 4; i++) {
		has_all(json_array_get(list, i), 1);
		assert_int_equal(json_array_size(json_object_get(json_array_get(list, i), "prompt_logprobs")),
		                 POSITIONS);
		assert_null(r->choice[i].scores.bytes.p);
	}
	assert_null(r->scored[0].scores.bytes.p);
	json_decref(v);
	finish(r);
}

/* The same for one long event; tokens that come while it is sent are in the next one. */
static void long_event(void **state)
{
	struct request *r = begin(ASK_COMPLETION, "{\"prompt\":[65,66],\"stream\":true,\"echo\":true,"
	                           "\"logprobs\":5}");
	struct choice *c = r->choice;
	json_t *v;

	(void)state;
	lengthen(r);
	push(r, c, 'q', -1);
	r->dialect->part(r, c);
	v = in_slices(r, 6);
	has_all(json_array_get(json_object_get(v, "choices"), 0), 1);
	json_decref(v);
	push(r, c, 'x', -1);
	r->dialect->part(r, c);
	push(r, c, 'y', -1);
	write_all(r);
	assert_non_null(strstr(r->event.p, "\"text\":\"x\""));
	r->dialect->part(r, c);
	write_all(r);
	assert_non_null(strstr(r->event.p, "\"text\":\"y\""));
	finish(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(completion_stream), cmocka_unit_test(completion_stream_usage),
		cmocka_unit_test(completion_echo_logprobs), cmocka_unit_test(chat_stream), cmocka_unit_test(chat_begins),
		cmocka_unit_test(whole_chat), cmocka_unit_test(errors), cmocka_unit_test(stop_strings),
		cmocka_unit_test(stop_after_min_tokens), cmocka_unit_test(half_a_character), cmocka_unit_test(lost),
		cmocka_unit_test(json_bytes), cmocka_unit_test(scores_come_back), cmocka_unit_test(long_answer),
		cmocka_unit_test(long_event),
	};

	toy_begin();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
