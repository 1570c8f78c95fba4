/* bench_data.c - generated prompts: random, prefix_repetition; and the list of prompts.
 *
 * A random prompt is made of ids, and must keep its count when it is sent as text.  Its ids are decoded,
 * encoded again, and cut or filled up until the count is exact, as in vLLM's benchmark.  Over the rings,
 * and with --prompt-token-ids, the ids themselves are sent.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "core/instance/refuse.h"

#define TRIES 10

int bench_load_add(struct bench_load *l, const struct bench_prompt *p)
{
	if (l->n == l->cap) {
		size_t cap = l->cap ? l->cap * 2 : 256;
		struct bench_prompt *grown = realloc(l->prompt, cap * sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		l->prompt = grown;
		l->cap = cap;
	}
	l->prompt[l->n++] = *p;
	return 0;
}

void bench_load_free(struct bench_load *l)
{
	for (size_t i = 0; i < l->n; i++)
		if (!l->prompt[i].borrowed) {
			free(l->prompt[i].text);
			free(l->prompt[i].ids);
		}
	free(l->prompt);
	*l = (struct bench_load){ 0 };
}

/* p->text = the text of p->ids. */
static int bench_decode(struct bench_prompt *p, const struct sr_text *text)
{
	int64_t n = sr_text_decode(text, p->ids, p->n_ids, false, NULL, 0);

	if (n < 0)
		return (int)n;
	free(p->text);
	p->text = malloc((size_t)n + 1);
	if (!p->text)
		return -ENOMEM;
	sr_text_decode(text, p->ids, p->n_ids, false, p->text, (size_t)n);
	p->text[n] = 0;
	p->n_text = (size_t)n;
	return 0;
}

/* Decode ids and encode them again until the text has exactly `want` tokens (at most 10 times); fill p. */
static int bench_exact(struct bench_prompt *p, const struct sr_text *text, int32_t *ids, uint32_t n,
                       uint32_t want, struct pcg *rng)
{
	uint32_t vocab = (uint32_t)sr_text_info(text)->vocab;
	int64_t got;
	int rc;

	*p = (struct bench_prompt){ .ids = ids, .n_ids = n };
	for (int tries = TRIES;; tries--) {
		rc = bench_decode(p, text);
		if (rc)
			return rc;
		got = sr_text_encode(text, p->text, p->n_text, SR_TEXT_SPECIAL_PARSE, NULL, 0, 0);
		if (got < 0)
			return (int)got;
		ids = realloc(p->ids, ((size_t)(got > want ? got : want) + 1) * sizeof(*ids));
		if (!ids)
			return -ENOMEM;
		p->ids = ids;
		sr_text_encode(text, p->text, p->n_text, SR_TEXT_SPECIAL_PARSE, ids, (size_t)got, 0);
		p->n_ids = (uint32_t)got;
		if (got == want || tries == 0)
			return 0;
		while (p->n_ids < want)
			ids[p->n_ids++] = (int32_t)pcg_below(rng, vocab);
		p->n_ids = want;
	}
}

/* "0.3", or {"input": 0.3, "output": 0}. */
static int ranges(const char *s, double *in, double *out, char *err, size_t errlen)
{
	json_t *j = *s == '{' ? json_loads(s, 0, NULL) : NULL, *a = json_object_get(j, "input"),
	       *b = json_object_get(j, "output");
	char *end = NULL;

	*in = *out = j ? -1 : strtod(s, &end);
	if (json_is_number(a) && json_is_number(b)) {
		*in = json_number_value(a);
		*out = json_number_value(b);
	}
	json_decref(j);
	if ((end && (end == s || *end)) || !(*in >= 0 && *in < 1 && *out >= 0 && *out < 1))
		return refuse(-EINVAL, err, errlen, "--random-range-ratio %s: give a number from 0 to below 1, or "
		              "{\"input\": N, \"output\": N} with such numbers", s);
	return 0;
}

/* n draws between floor(mean (1 - ratio)) and ceil(mean (1 + ratio)).  All of one kind are drawn before the
 * next kind, as in vLLM. */
static uint32_t *lengths(struct pcg *rng, size_t n, int64_t mean, double ratio, int64_t least)
{
	int64_t low = (int64_t)floor((double)mean * (1 - ratio));
	int64_t high = (int64_t)ceil((double)mean * (1 + ratio));
	uint32_t *v = malloc(n * sizeof(*v));

	if (low < least)
		low = least;
	if (high < low)
		high = low;
	for (size_t i = 0; v && i < n; i++)
		v[i] = (uint32_t)(low + (int64_t)pcg_below(rng, (uint64_t)(high - low + 1)));
	return v;
}

/* All ids that are not special, in order. */
static int32_t *allowed_ids(const struct sr_text *text, uint32_t *n)
{
	int32_t vocab = sr_text_info(text)->vocab, *ids = malloc((size_t)vocab * sizeof(*ids));
	const char *piece;
	bool special;

	*n = 0;
	for (int32_t id = 0; ids && id < vocab; id++)
		if (sr_text_piece(text, id, &piece, &special) >= 0 && !special)
			ids[(*n)++] = id;
	return ids;
}

static int special_tokens(const struct sr_text *text)
{
	int64_t n = sr_text_encode(text, "", 0, SR_TEXT_SPECIAL_ADD, NULL, 0, 0);

	return n > 0 ? (int)n : 0;
}

struct drawing {
	const struct sr_text *text;
	struct pcg rng;
	int32_t *allowed;
	uint32_t n_allowed;
	struct bench_prompt prefix;
};

static int random_prefix(struct drawing *d, uint32_t n)
{
	int32_t *ids = n ? malloc(n * sizeof(*ids)) : NULL;

	if (!n)
		return 0;
	for (uint32_t i = 0; ids && i < n; i++)
		ids[i] = d->allowed[pcg_below(&d->rng, d->n_allowed)];
	return ids ? bench_exact(&d->prefix, d->text, ids, n, n, &d->rng) : -ENOMEM;
}

static int random_prompt(struct drawing *d, struct bench_load *l, uint64_t offset, uint32_t n_in,
                         uint32_t n_out)
{
	uint32_t n_prefix = d->prefix.n_ids, n = n_prefix + n_in;
	int32_t *ids = malloc(((size_t)n + 1) * sizeof(*ids));
	struct bench_prompt p;
	int rc;

	if (!ids)
		return -ENOMEM;
	if (n_prefix)
		memcpy(ids, d->prefix.ids, n_prefix * sizeof(*ids));
	for (uint32_t k = 0; k < n_in; k++)
		ids[n_prefix + k] = d->allowed[(offset + l->n + k) % d->n_allowed];
	rc = bench_exact(&p, d->text, ids, n, n, &d->rng);
	p.max_tokens = n_out;
	return rc ? rc : bench_load_add(l, &p);
}

static int load_random(struct bench_load *l, const struct bench_options *o, const struct sr_text *text,
                       char *err, size_t errlen)
{
	int64_t input = (o->input_len ? o->input_len : o->random_input) - special_tokens(text);
	int64_t output = o->output_len ? o->output_len : o->random_output;
	struct drawing d = { .text = text };
	size_t n = (size_t)o->n_prompts;
	double in, out;
	int rc = ranges(o->random_range, &in, &out, err, errlen);

	if (rc)
		return rc;
	if (o->random_prefix + (int64_t)floor((double)(input > 0 ? input : 0) * (1 - in)) < 1)
		return refuse(-EINVAL, err, errlen, "--random-input-len allows prompts without a token: raise it, or "
		              "--random-prefix-len");
	pcg_seed(&d.rng, (uint64_t)o->seed);
	d.allowed = allowed_ids(text, &d.n_allowed);
	uint32_t *n_in = lengths(&d.rng, n, input > 0 ? input : 0, in, 0);
	uint32_t *n_out = lengths(&d.rng, n, output, out, 1);
	uint64_t *offset = malloc(n * sizeof(*offset));

	rc = d.allowed && d.n_allowed && n_in && n_out && offset ? 0 : -ENOMEM;
	for (size_t i = 0; !rc && i < n; i++)
		offset[i] = pcg_below(&d.rng, (uint64_t)sr_text_info(text)->vocab);
	if (!rc)
		rc = random_prefix(&d, (uint32_t)o->random_prefix);
	for (size_t i = 0; !rc && i < n; i++)
		rc = random_prompt(&d, l, offset[i], n_in[i], n_out[i]);
	free(d.allowed);
	free(d.prefix.ids);
	free(d.prefix.text);
	free(n_in);
	free(n_out);
	free(offset);
	return rc;
}

static int random_ids(struct bench_prompt *p, struct drawing *d, uint32_t n)
{
	int32_t *ids = malloc(((size_t)n + 1) * sizeof(*ids));

	for (uint32_t i = 0; ids && i < n; i++)
		ids[i] = (int32_t)pcg_below(&d->rng, (uint64_t)sr_text_info(d->text)->vocab);
	return ids ? bench_exact(p, d->text, ids, n, n, &d->rng) : -ENOMEM;
}

/* Make a prompt of the prefix's ids and new ones. */
static int repeat_prefix(struct drawing *d, struct bench_load *l, uint32_t n_suffix, uint32_t n_out)
{
	struct bench_prompt p;
	int32_t *ids;
	int rc = random_ids(&p, d, n_suffix);

	if (rc)
		return rc;
	ids = malloc(((size_t)d->prefix.n_ids + p.n_ids + 1) * sizeof(*ids));
	if (!ids)
		return -ENOMEM;
	memcpy(ids, d->prefix.ids, d->prefix.n_ids * sizeof(*ids));
	memcpy(ids + d->prefix.n_ids, p.ids, p.n_ids * sizeof(*ids));
	free(p.ids);
	p.ids = ids;
	p.n_ids += d->prefix.n_ids;
	p.max_tokens = n_out;
	rc = bench_decode(&p, d->text);
	return rc ? rc : bench_load_add(l, &p);
}

static int load_prefixes(struct bench_load *l, const struct bench_options *o, const struct sr_text *text,
                         char *err, size_t errlen)
{
	int64_t output = o->output_len ? o->output_len : o->prefix_output;
	int64_t each = o->n_prompts / o->n_prefixes;
	struct drawing d = { .text = text };
	struct twister t;
	int rc = 0;

	if (!each)
		return refuse(-EINVAL, err, errlen, "--num-prompts %lld: prefix_repetition needs at least one prompt "
		              "for each of its %lld prefixes", (long long)o->n_prompts, (long long)o->n_prefixes);
	pcg_seed(&d.rng, (uint64_t)o->seed);
	for (int64_t i = 0; !rc && i < o->n_prefixes; i++) {
		rc = random_ids(&d.prefix, &d, (uint32_t)o->prefix_len);
		for (int64_t k = 0; !rc && k < each; k++)
			rc = repeat_prefix(&d, l, (uint32_t)o->suffix_len, (uint32_t)output);
		free(d.prefix.ids);
		free(d.prefix.text);
	}
	twister_seed_python(&t, (uint64_t)o->seed);
	for (size_t i = l->n; !rc && !o->keep_order && i-- > 1;) {
		size_t k = twister_below(&t, i + 1);
		struct bench_prompt swap = l->prompt[i];

		l->prompt[i] = l->prompt[k];
		l->prompt[k] = swap;
	}
	return rc;
}

int bench_load(struct bench_load *l, const struct bench_options *o, const struct sr_text *text,
               char *err, size_t errlen)
{
	bool custom = !strcmp(o->dataset, "custom");
	int rc;

	snprintf(err, errlen, "no memory for the prompts");
	if (!text && !custom)
		return refuse(-EINVAL, err, errlen, "--skip-tokenizer-init: the dataset %s needs a tokenizer",
		              o->dataset);
	if (!strcmp(o->dataset, "random"))
		rc = load_random(l, o, text, err, errlen);
	else if (!strcmp(o->dataset, "prefix_repetition"))
		rc = load_prefixes(l, o, text, err, errlen);
	else
		rc = bench_load_files(l, o, text, err, errlen);
	if (rc)
		bench_load_free(l);
	return rc;
}
