/* bench_files.c - prompts read from files: sharegpt (one JSON list), custom and timed_trace (one JSON
 * object per line).  An error names the wrong line and what it should be.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "core/instance/refuse.h"

#define MAX_TOKENS (1 << 24)     /* a greater length is a mistake */

struct prompt_reader {
	struct bench_load *l;
	const struct bench_options *o;
	const struct sr_text *text;
	const char *path;
	size_t line;
	char *err;
	size_t errlen;
};

static int wrong(const struct prompt_reader *r, const char *what, const char *field, const char *right)
{
	snprintf(r->err, r->errlen, "%s: line %zu: %s%s%s%s", r->path, r->line, what, field ? " \"" : "",
	         field ? field : "", field ? "\"" : "");
	snprintf(r->err + strlen(r->err), r->errlen - strlen(r->err), "; %s", right);
	return -EINVAL;
}

/* Tokenize p->text: count its ids, and keep them if they will be sent. */
static int tokenize(struct bench_prompt *p, const struct sr_text *text)
{
	int64_t n;

	if (!text) {
		p->n_ids = 1;                 /* as vLLM counts without a tokenizer */
		return 0;
	}
	n = sr_text_encode(text, p->text, p->n_text, SR_TEXT_SPECIAL_ADD | SR_TEXT_SPECIAL_PARSE, NULL, 0, 0);
	if (n < 0)
		return (int)n;
	p->ids = malloc(((size_t)n + 1) * sizeof(*p->ids));
	if (!p->ids)
		return -ENOMEM;
	p->n_ids = (uint32_t)n;
	sr_text_encode(text, p->text, p->n_text, SR_TEXT_SPECIAL_ADD | SR_TEXT_SPECIAL_PARSE, p->ids,
	               (size_t)n, 0);
	return 0;
}

static int own_text(struct bench_prompt *p, const json_t *value)
{
	p->n_text = json_string_length(value);
	p->text = malloc(p->n_text + 1);
	if (!p->text)
		return -ENOMEM;
	memcpy(p->text, json_string_value(value), p->n_text + 1);
	return 0;
}

static void shuffle(json_t **v, size_t n, uint64_t seed)
{
	struct twister t;

	twister_seed_python(&t, seed);
	for (size_t i = n; i-- > 1;) {
		size_t k = twister_below(&t, i + 1);
		json_t *swap = v[i];

		v[i] = v[k];
		v[k] = swap;
	}
}

/* Repeat random prompts until there are as many as --num-prompts. */
static int oversample(struct prompt_reader *r)
{
	size_t n = r->l->n, want = (size_t)r->o->n_prompts;
	struct bench_prompt p;
	struct twister t;
	int rc = 0;

	if (!n)
		return refuse(-EINVAL, r->err, r->errlen, "%s: it holds no usable prompt", r->path);
	twister_seed_python(&t, (uint64_t)r->o->seed);
	while (!rc && !r->o->no_oversample && r->l->n < want) {
		p = r->l->prompt[twister_below(&t, n)];
		p.borrowed = true;
		rc = bench_load_add(r->l, &p);
	}
	return rc;
}

/* ---- sharegpt ---------------------------------------------------------------------------------- */

static int sharegpt_entry(struct prompt_reader *r, const json_t *turns)
{
	int64_t fixed = r->o->output_len ? r->o->output_len : r->o->sharegpt_output, n_out = fixed;
	const json_t *first = json_object_get(json_array_get(turns, 0), "value"),
	             *second = json_object_get(json_array_get(turns, 1), "value");
	struct bench_prompt p = { 0 };
	int rc;

	if (!json_is_string(first) || !json_is_string(second))
		return wrong(r, "a conversation's turn has no text", "value",
		             "every turn is {\"from\": ..., \"value\": TEXT}");
	if (!fixed)
		n_out = sr_text_encode(r->text, json_string_value(second), json_string_length(second),
		                       SR_TEXT_SPECIAL_ADD | SR_TEXT_SPECIAL_PARSE, NULL, 0, 0);
	if (n_out < 0)
		return (int)n_out;
	rc = own_text(&p, first);
	if (!rc)
		rc = tokenize(&p, r->text);
	p.max_tokens = (uint32_t)n_out;
	if (!rc && p.n_ids >= 4 && p.n_ids <= 1024 && n_out >= (fixed ? 1 : 4) && p.n_ids + n_out <= 2048)
		return bench_load_add(r->l, &p);
	free(p.text);
	free(p.ids);
	return rc;
}

static int load_sharegpt(struct prompt_reader *r)
{
	json_error_t e;
	json_t *all = json_load_file(r->path, JSON_ALLOW_NUL, &e), *entry, **usable;
	size_t i, n = 0;
	int rc = 0;

	if (!json_is_array(all)) {
		if (all)
			snprintf(r->err, r->errlen, "%s: a sharegpt dataset must be a list of conversations", r->path);
		else if (e.line > 0)
			snprintf(r->err, r->errlen, "%s: line %d: %s", r->path, e.line, e.text);
		else
			snprintf(r->err, r->errlen, "%s", e.text);
		json_decref(all);
		return -EINVAL;
	}
	usable = malloc((json_array_size(all) + 1) * sizeof(*usable));
	json_array_foreach(all, i, entry) {
		json_t *turns = json_object_get(entry, "conversations");

		if (usable && json_array_size(turns) >= 2)
			usable[n++] = turns;
	}
	if (usable && !r->o->keep_order)
		shuffle(usable, n, (uint64_t)r->o->seed);
	for (i = 0; usable && !rc && i < n && r->l->n < (size_t)r->o->n_prompts; i++)
		rc = sharegpt_entry(r, usable[i]);
	json_decref(all);
	free(usable);
	return rc ? rc : !usable ? -ENOMEM : oversample(r);
}

/* ---- lines of JSON ----------------------------------------------------------------------------- */

/* Read all lines as objects; *out is malloc'ed. */
static int read_lines(struct prompt_reader *r, json_t ***out, size_t *n)
{
	FILE *f = fopen(r->path, "r");
	size_t cap = 0, room = 0;
	char *line = NULL;
	json_error_t e;
	ssize_t len;
	int rc = 0;

	*out = NULL;
	*n = 0;
	if (!f) {
		snprintf(r->err, r->errlen, "%s: %s", r->path, strerror(errno));
		return -errno;
	}
	while (!rc && (len = getline(&line, &cap, f)) >= 0) {
		json_t *j;

		r->line++;
		if (!line[strspn(line, " \t\r\n")])
			continue;
		j = json_loadb(line, (size_t)len, JSON_ALLOW_NUL, &e);
		if (!json_is_object(j)) {
			rc = wrong(r, j ? "not a JSON object" : e.text, NULL,
			           "every line is one JSON object");
			json_decref(j);
			break;
		}
		json_object_set_new(j, " line", json_integer((json_int_t)r->line));
		if (*n == room) {
			json_t **grown = realloc(*out, (room = room ? room * 2 : 256) * sizeof(**out));

			if (!grown) {
				json_decref(j);
				rc = -ENOMEM;
				break;
			}
			*out = grown;
		}
		(*out)[(*n)++] = j;
	}
	free(line);
	fclose(f);
	return rc;
}

static int count_of(struct prompt_reader *r, const json_t *entry, const char *field, json_int_t least,
                    uint32_t *out)
{
	const json_t *v = json_object_get(entry, field);

	if (!json_is_integer(v) || json_integer_value(v) < least || json_integer_value(v) > MAX_TOKENS)
		return wrong(r, v ? "not a number of tokens:" : "no field", field,
		             "it must be a whole number of tokens");
	*out = (uint32_t)json_integer_value(v);
	return 0;
}

/* Render the prompt as one message of a user, with the model's own template. */
static int read_chat(struct prompt_reader *r, struct bench_prompt *p, const json_t *prompt)
{
	json_t *kwargs = r->o->template_kwargs ? json_loads(r->o->template_kwargs, 0, NULL) : NULL;
	json_t *context = json_pack("{s:[{s:s, s:O}]}", "messages", "role", "user", "content", prompt);
	char *dumped, why[300];
	int64_t n;

	if (kwargs)
		json_object_set_new(context, "chat_template_kwargs", kwargs);
	dumped = context ? json_dumps(context, 0) : NULL;
	json_decref(context);
	if (!dumped)
		return -ENOMEM;
	n = sr_text_chat(r->text, NULL, dumped, &p->text, why, sizeof(why));
	free(dumped);
	if (n < 0)
		return wrong(r, why, NULL, "--skip-chat-template sends prompts as they are");
	p->n_text = (size_t)n;
	return 0;
}

static int custom_entry(struct prompt_reader *r, const json_t *entry)
{
	const json_t *prompt = json_object_get(entry, "prompt");
	int64_t fixed = r->o->output_len ? r->o->output_len : r->o->custom_output;
	struct bench_prompt p = { 0 };
	int rc;

	if (!json_is_string(prompt))
		return wrong(r, prompt ? "not a text:" : "no field", "prompt",
		             "every line is {\"prompt\": TEXT}");
	if (!r->text)
		p.max_tokens = 1;
	else if (fixed > 0)
		p.max_tokens = (uint32_t)fixed;
	else if ((rc = count_of(r, entry, "output_tokens", 1, &p.max_tokens)))
		return rc;
	/* chat back ends render the conversation on the server */
	rc = r->text && !r->o->no_template && !bench_chat(r->o) && sr_text_info(r->text)->chat_template ?
	     read_chat(r, &p, prompt) : own_text(&p, prompt);
	if (!rc)
		rc = tokenize(&p, r->text);
	if (!rc)
		rc = bench_load_add(r->l, &p);
	if (rc) {
		free(p.text);
		free(p.ids);
	}
	return rc;
}

static uint64_t hash_add(uint64_t h, uint64_t v)
{
	h = (h ^ v) * 0x9e3779b97f4a7c15u;
	return h ^ h >> 29;
}

/* Each hash stands for a chunk of tokens: equal hashes give equal chunks. */
static int read_hashes(struct prompt_reader *r, struct bench_prompt *p, const json_t *hashes, uint32_t n)
{
	uint32_t chunk = (uint32_t)r->o->trace_chunk, vocab = (uint32_t)sr_text_info(r->text)->vocab;
	json_t *hash;
	size_t i;

	p->ids = malloc(((size_t)n + 1) * sizeof(*p->ids));
	if (!p->ids)
		return -ENOMEM;
	json_array_foreach(hashes, i, hash) {
		uint32_t size = n - p->n_ids < chunk ? n - p->n_ids : chunk;
		const char *piece;
		struct pcg g;

		pcg_seed(&g, hash_add(hash_add(0, (uint64_t)json_integer_value(hash)), size));
		for (uint32_t k = 0; k < size;) {
			int32_t id = (int32_t)pcg_below(&g, vocab);
			bool special = false;

			if (sr_text_piece(r->text, id, &piece, &special) < 0 || special)
				continue;
			p->ids[p->n_ids++] = id;
			k++;
		}
	}
	return 0;
}

static int trace_entry(struct prompt_reader *r, const json_t *entry)
{
	const struct bench_options *o = r->o;
	const json_t *at = json_object_get(entry, o->trace_time);
	const json_t *hashes = json_object_get(entry, o->trace_hashes);
	struct bench_prompt p = { 0 };
	uint32_t n;
	int rc;

	if (!json_is_number(at) || json_number_value(at) < 0)
		return wrong(r, at ? "not a time:" : "no field", o->trace_time,
		             "--timed-trace-label-timestamp names the field with the time");
	if (!json_is_array(hashes))
		return wrong(r, hashes ? "not a list:" : "no field", o->trace_hashes,
		             "--timed-trace-label-hash-ids names the field with hashes of the prompt's chunks");
	rc = count_of(r, entry, o->trace_input, 1, &n);
	if (!rc)
		rc = count_of(r, entry, o->trace_output, 1, &p.max_tokens);
	if (!rc && json_array_size(hashes) * (size_t)o->trace_chunk < n)
		rc = wrong(r, "fewer hashes than the prompt has chunks:", o->trace_hashes,
		           "--timed-trace-chunk-hash-size is the number of tokens that one hash stands for");
	if (!rc)
		rc = read_hashes(r, &p, hashes, n);
	p.at = json_number_value(at) * o->trace_seconds;
	if (!rc)
		rc = bench_load_add(r->l, &p);
	if (rc)
		free(p.ids);
	return rc;
}

static int load_lines(struct prompt_reader *r, bool trace)
{
	size_t n, want = (size_t)r->o->n_prompts;
	json_t **entry;
	int rc = read_lines(r, &entry, &n);

	if (!rc && !trace && !r->o->keep_order)
		shuffle(entry, n, (uint64_t)r->o->seed);
	for (size_t i = 0; !rc && i < n && r->l->n < want; i++) {
		r->line = (size_t)json_integer_value(json_object_get(entry[i], " line"));
		rc = trace ? trace_entry(r, entry[i]) : custom_entry(r, entry[i]);
	}
	for (size_t i = 0; i < n; i++)
		json_decref(entry[i]);
	free(entry);
	if (!rc && trace && !r->l->n)
		return refuse(-EINVAL, r->err, r->errlen, "%s: it holds no request", r->path);
	return rc || trace ? rc : oversample(r);
}

int bench_load_files(struct bench_load *l, const struct bench_options *o, const struct sr_text *text,
                     char *err, size_t errlen)
{
	struct prompt_reader r = { .l = l, .o = o, .text = text, .path = o->dataset_path, .err = err,
	                          .errlen = errlen };

	if (!strcmp(o->dataset, "sharegpt"))
		return load_sharegpt(&r);
	return load_lines(&r, !strcmp(o->dataset, "timed_trace"));
}
