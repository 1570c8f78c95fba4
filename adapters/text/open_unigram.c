/* open_unigram.c - a tokenizer of unigrams in tokenizer.json: model Unigram, with the normalizers and
 * pre-tokenizers of XLM-R, T5 and those like them. */
#include <errno.h>
#include <stdlib.h>

#include <openssl/evp.h>

#include "open_json.h"

/* Precompiled: base64 of a table. */
static int read_charsmap(const struct json_reader *j, const json_t *n)
{
	const json_t *s = json_object_get(n, "precompiled_charsmap");
	size_t len = json_string_length(s), pad = 0;
	const char *from = json_string_value(s);
	unsigned char *table;
	int got, rc;

	if (!json_is_string(s) || len % 4 || len > CHARSMAP_MAX || j->t->charsmap.unit)
		return reject_file(j, -EINVAL, TOKENIZER, "normalizer Precompiled needs one precompiled_charsmap, in "
		                   "base64", NULL);
	while (pad < 2 && pad < len && from[len - 1 - pad] == '=')
		pad++;
	table = malloc(len / 4 * 3 + 1);
	if (!table)
		return reject_file(j, -ENOMEM, TOKENIZER, "no memory", NULL);
	got = EVP_DecodeBlock(table, (const unsigned char *)from, (int)len);
	rc = got < (int)pad ? -EINVAL : charsmap_create(&j->t->charsmap, table, (size_t)got - pad);
	free(table);
	if (rc)
		return reject_file(j, rc, TOKENIZER, "precompiled_charsmap is no table, or there is no memory", NULL);
	j->t->charsmap.clusters = true;
	return 0;
}

static int add_step(const struct json_reader *j, enum text_step step)
{
	for (int i = 0; i < STEPS_MAX; i++)
		if (!j->t->step[i]) {
			j->t->step[i] = step;
			return 0;
		}
	return reject_file(j, -ENOTSUP, TOKENIZER, "more than four normalizers beside Unigram", NULL);
}

static int read_step(const struct json_reader *j, const json_t *n)
{
	const json_t *to = json_object_get(n, "content");
	int rc = 0;

	if (!strcmp(type_name_of(n), "Precompiled")) {
		if (j->t->step[0])
			return reject_file(j, -ENOTSUP, TOKENIZER, "behind another normalizer, normalizer",
			                   "Precompiled");
		rc = read_charsmap(j, n);
		return rc ? rc : add_step(j, STEP_CHARSMAP);
	}
	if (!strcmp(type_name_of(n), "Strip")) {
		if (is_true(n, "strip_left"))
			rc = add_step(j, STEP_STRIP_LEFT);
		return rc || !is_true(n, "strip_right") ? rc : add_step(j, STEP_STRIP_RIGHT);
	}
	if (!strcmp(type_name_of(n), "Replace") &&
	    is_text(json_object_get(json_object_get(n, "pattern"), "Regex"), " {2,}") &&
	    (is_text(to, " ") || is_text(to, SPACE_MARK)))
		return add_step(j, is_text(to, " ") ? STEP_RUNS : STEP_RUNS_MARKED);
	return reject_file(j, -ENOTSUP, TOKENIZER, "beside Unigram, normalizer", type_name_of(n));
}

/* Metaspace, and WhitespaceSplit before it. */
static int read_pre(const struct json_reader *j, const json_t *p)
{
	const json_t *list = json_object_get(p, "pretokenizers");
	struct sr_text *t = j->t;

	if (!strcmp(type_name_of(p), "Sequence") && json_array_size(list) == 2 &&
	    !strcmp(type_name_of(json_array_get(list, 0)), "WhitespaceSplit")) {
		t->white = WHITE_PARTS;
		p = json_array_get(list, 1);
	}
	if (strcmp(type_name_of(p), "Metaspace"))
		return reject_file(j, -ENOTSUP, TOKENIZER, "beside Unigram, pre_tokenizer", type_name_of(p));
	if (t->white == WHITE_PARTS && json_is_false(json_object_get(p, "split")))
		return reject_file(j, -ENOTSUP, TOKENIZER, "behind WhitespaceSplit, Metaspace without split", NULL);
	return read_metaspace(j, p);
}

static int read_scores(const struct json_reader *j, const json_t *model)
{
	const json_t *vocab = json_object_get(model, "vocab"), *unk = json_object_get(model, "unk_id");
	struct sr_text *t = j->t;
	double *score = calloc((size_t)t->vocab.n + 1, sizeof(*score)), least = 0;
	json_t *item;
	size_t i;
	int rc;

	if (!score)
		return reject_file(j, -ENOMEM, TOKENIZER, "no memory", NULL);
	json_array_foreach(vocab, i, item) {
		const json_t *s = json_array_get(item, 1);

		if (!json_is_number(s)) {
			free(score);
			return reject_file(j, -EINVAL, TOKENIZER, "model.vocab: there is no score for",
			                   json_string_value(json_array_get(item, 0)));
		}
		score[i] = json_number_value(s);
		least = !i || score[i] < least ? score[i] : least;
	}
	rc = unigram_create(&t->unigram, &t->vocab, score, least, json_id(unk, (int32_t)t->vocab.n));
	return rc ? reject_file(j, rc, TOKENIZER, rc == -ENOMEM ? "no memory" : "model: unk_id must be a token, "
	                        "scores must be numbers, tokens at most 256 bytes", NULL) : 0;
}

int read_unigram(const struct json_reader *j, const json_t *root)
{
	const json_t *model = json_object_get(root, "model"), *d = json_object_get(root, "decoder");
	struct sr_text *t = j->t;
	int rc;

	if (is_true(model, "byte_fallback"))
		return reject_file(j, -ENOTSUP, TOKENIZER, "model Unigram with", "byte_fallback");
	if (d && !json_is_null(d) && strcmp(type_name_of(d), "Metaspace"))
		return reject_file(j, -ENOTSUP, TOKENIZER, "beside Unigram, decoder", type_name_of(d));
	rc = read_normalizers(j, json_object_get(root, "normalizer"), read_step);
	if (!rc)
		rc = read_pre(j, json_object_get(root, "pre_tokenizer"));
	t->strip = t->lead != LEAD_NONE;
	if (!rc)
		rc = read_json_tokens(j, root, true);
	return rc ? rc : read_scores(j, model);
}
