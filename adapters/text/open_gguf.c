/* open_gguf.c - a tokenizer from the metadata of a GGUF file (tokenizer.ggml.*).
 *
 * Source: ggml's docs/gguf.md, section "Tokenizer".
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/models/gguf.h"
#include "text.h"

enum { TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER = 4 };   /* of tokenizer.ggml.token_type */

static int32_t type_of(const struct gguf_value *v, uint64_t i)
{
	int32_t type;

	if (!v || i >= v->n)
		return 1;
	memcpy(&type, v->data + 4 * i, 4);
	return type;
}

static const struct gguf_value *strings(const struct gguf *g, const char *key, char *err, size_t errlen)
{
	const struct gguf_value *v = gguf_find(g, key);

	if (v && v->type == GGUF_ARRAY && v->item == GGUF_STRING)
		return v;
	snprintf(err, errlen, "%s: %s", key, v ? "must be an array of strings" : "it is missing");
	return NULL;
}

static int read_tokens(struct sr_text *t, const struct gguf *g, char *err, size_t errlen)
{
	const struct gguf_value *tokens = strings(g, "tokenizer.ggml.tokens", err, errlen);
	const struct gguf_value *types = gguf_find(g, "tokenizer.ggml.token_type");
	struct gguf_string s;
	const uint8_t *at;
	uint64_t i = 0;
	int rc;

	if (!tokens)
		return -EINVAL;
	if (types && (types->type != GGUF_ARRAY || types->item != GGUF_I32)) {
		snprintf(err, errlen, "tokenizer.ggml.token_type: must be an array of int32");
		return -EINVAL;
	}
	for (at = tokens->data; gguf_next_string(tokens, &at, &s); i++) {
		int32_t type = type_of(types, i);
		unsigned kind = type == TYPE_CONTROL || type == TYPE_UNKNOWN ? VOCAB_ADDED | VOCAB_SPECIAL :
		                type == TYPE_USER ? VOCAB_ADDED : 0;

		rc = vocab_set(&t->vocab, (int64_t)i, s.s, s.n, kind);
		if (rc) {
			snprintf(err, errlen, "tokenizer.ggml.tokens[%" PRIu64 "]: %s", i,
			         rc == -ENOMEM ? "no memory" : "there are too many tokens, or this one is too long");
			return rc;
		}
	}
	rc = vocab_seal(&t->vocab);
	if (rc)
		snprintf(err, errlen, "no memory for %" PRIu64 " tokens", i);
	t->info.vocab = t->vocab.n;
	return rc;
}

/* Phi-3's control tokens take the white space behind them, but for those that are no part of a chat.  A
 * GGUF file does not say so; tokenizer.json does. */
static bool takes_space(const struct added_token *a, const struct gguf *g)
{
	static const char *const others[] = { "<unk>", "<s>", "<|endoftext|>" };
	struct gguf_string arch;

	if (!a->special || gguf_str(g, "general.architecture", &arch) || arch.n != 4 || memcmp(arch.s, "phi3", 4))
		return false;
	for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
		if (strlen(others[i]) == a->n && !memcmp(a->s, others[i], a->n))
			return false;
	return true;
}

static int read_added(struct sr_text *t, const struct gguf *g)
{
	const struct vocab *v = &t->vocab;

	for (int32_t id = 0; id < v->n; id++) {
		struct added_token a = { v->chars + v->spelling[id].at, v->spelling[id].n, id,
		                         v->kind[id] & VOCAB_SPECIAL, false, false };
		int rc;

		if (!(v->kind[id] & VOCAB_ADDED) || !a.n)
			continue;
		a.rstrip = v->characters && takes_space(&a, g);
		rc = added_put(&t->before, &a);
		if (rc)
			return rc;
	}
	return 0;
}

static int read_merges(struct sr_text *t, const struct gguf *g, char *err, size_t errlen)
{
	const struct gguf_value *v = strings(g, "tokenizer.ggml.merges", err, errlen);
	struct gguf_string s;
	const uint8_t *at;
	uint64_t i = 0;
	int rc;

	if (!v)
		return -EINVAL;
	rc = v->n > INT32_MAX / 4 ? -EINVAL : bpe_create(&t->bpe, &t->vocab, (uint32_t)v->n);
	if (rc) {
		snprintf(err, errlen, "tokenizer.ggml.merges: no room for %" PRIu64, v->n);
		return rc;
	}
	for (at = v->data; gguf_next_string(v, &at, &s); i++) {
		const char *space = s.n > 2 ? memchr(s.s + 1, ' ', s.n - 1) : NULL;
		size_t left = space ? (size_t)(space - s.s) : 0;

		if (!space || bpe_add(&t->bpe, s.s, left, space + 1, s.n - left - 1)) {
			snprintf(err, errlen, "tokenizer.ggml.merges[%" PRIu64 "] '%.*s': not two tokens that make "
			         "a third",
			         i, s.n > 60 ? 60 : (int)s.n, s.s);
			return -EINVAL;
		}
	}
	return 0;
}

/* Read the id under a key; -1 if there is none. */
static int read_id(const struct sr_text *t, const struct gguf *g, const char *key, int32_t *out,
                   char *err, size_t errlen)
{
	uint64_t id;
	int rc = gguf_u64(g, key, &id);

	*out = -1;
	if (rc == -ENOENT)
		return 0;
	if (rc || id >= (uint64_t)t->info.vocab) {
		snprintf(err, errlen, "%s: must be an id below %d", key, t->info.vocab);
		return -EINVAL;
	}
	*out = (int32_t)id;
	return 0;
}

static int32_t special_id(const struct sr_text *t, const char *spelling)
{
	int32_t id = vocab_by_spelling(&t->vocab, spelling, strlen(spelling));

	return id >= 0 && t->vocab.kind[id] & VOCAB_SPECIAL ? id : -1;
}

/* Tokens that end a turn, whatever the file calls them.  In gpt-oss's format <|end|> only ends a message,
 * after which the turn goes on. */
static void add_turn_ends(struct sr_text *t)
{
	static const char *const usual[] = { "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<end_of_turn>" };
	int32_t done = special_id(t, "<|return|>"), call = special_id(t, "<|call|>");

	for (size_t i = 0; i < sizeof(usual) / sizeof(*usual); i++)
		text_add_stop(t, special_id(t, usual[i]));
	if (done < 0 || call < 0) {
		text_add_stop(t, special_id(t, "<|end|>"));
		return;
	}
	text_add_stop(t, done);
	text_add_stop(t, call);
}

static int read_ends(struct sr_text *t, const struct gguf *g, char *err, size_t errlen)
{
	static const char *const stops[] = { "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id" };
	bool add_bos = t->pre.add_bos, add_eos = false;
	int32_t id;
	int rc;

	if (read_id(t, g, "tokenizer.ggml.bos_token_id", &t->info.bos, err, errlen) ||
	    read_id(t, g, "tokenizer.ggml.eos_token_id", &t->info.eos, err, errlen))
		return -EINVAL;
	text_add_stop(t, t->info.eos);
	for (size_t i = 0; i < sizeof(stops) / sizeof(*stops); i++) {
		if (read_id(t, g, stops[i], &id, err, errlen))
			return -EINVAL;
		text_add_stop(t, id);
	}
	add_turn_ends(t);
	rc = gguf_bool(g, "tokenizer.ggml.add_bos_token", &add_bos);
	if (rc != -EINVAL)
		rc = gguf_bool(g, "tokenizer.ggml.add_eos_token", &add_eos);
	if (rc == -EINVAL) {
		snprintf(err, errlen, "tokenizer.ggml.add_bos_token and add_eos_token must be bools");
		return -EINVAL;
	}
	t->info.add_bos = add_bos && t->info.bos >= 0;
	if (t->info.add_bos)
		t->prefix[t->n_prefix++] = t->info.bos;
	if (add_eos && t->info.eos >= 0)
		t->suffix[t->n_suffix++] = t->info.eos;
	return 0;
}

/* tokenizer.ggml.model gpt2: byte-level BPE. */
static int read_byte_level(struct sr_text *t, const struct gguf *g, char *err, size_t errlen)
{
	struct gguf_string pre = { "default", 7 };
	bool space = false;
	int rc;

	if (gguf_bool(g, "tokenizer.ggml.add_space_prefix", &space) == 0 && space) {
		snprintf(err, errlen, "tokenizer.ggml.add_space_prefix is not supported with byte-level BPE");
		return -ENOTSUP;
	}
	if (gguf_str(g, "tokenizer.ggml.pre", &pre) == -EINVAL) {
		snprintf(err, errlen, "tokenizer.ggml.pre: must be a string");
		return -EINVAL;
	}
	rc = pre_named(&t->pre, pre.s, pre.n, err, errlen);
	if (rc)
		return rc;
	snprintf(t->pre_name, sizeof(t->pre_name), "%.*s", (int)pre.n, pre.s);
	t->nfc = t->pre.nfc;     /* GGUF has no key for a normalizer */
	return 0;
}

/* llama: SentencePiece, merges by score.  gemma4: the same characters, with a list of merges. */
static int read_characters(struct sr_text *t, const struct gguf *g, bool llama, char *err, size_t errlen)
{
	bool space = llama;

	if (gguf_bool(g, "tokenizer.ggml.add_space_prefix", &space) == -EINVAL) {
		snprintf(err, errlen, "tokenizer.ggml.add_space_prefix: must be a bool");
		return -EINVAL;
	}
	t->vocab.characters = true;
	t->lead = space ? LEAD_ALWAYS : LEAD_NONE;
	t->strip = space;
	t->pre.add_bos = true;
	snprintf(t->pre_name, sizeof(t->pre_name), "%s", llama ? "sentencepiece" : "gemma4");
	return 0;
}

static int read_kind(struct sr_text *t, const struct gguf *g, bool *scored, char *err, size_t errlen)
{
	struct gguf_string model;

	if (gguf_str(g, "tokenizer.ggml.model", &model)) {
		snprintf(err, errlen, "tokenizer.ggml.model: missing");
		return -EINVAL;
	}
	*scored = model.n == 5 && !memcmp(model.s, "llama", 5);
	if (*scored || (model.n == 6 && !memcmp(model.s, "gemma4", 6)))
		return read_characters(t, g, *scored, err, errlen);
	if (model.n == 4 && !memcmp(model.s, "gpt2", 4))
		return read_byte_level(t, g, err, errlen);
	snprintf(err, errlen, "tokenizer.ggml.model '%.*s' is not supported: it must be gpt2 (byte-level BPE), "
	                      "llama (SentencePiece BPE) or gemma4", model.n > 40 ? 40 : (int)model.n, model.s);
	return -ENOTSUP;
}

static int read_scores(struct sr_text *t, const struct gguf *g, char *err, size_t errlen)
{
	const struct gguf_value *v = gguf_find(g, "tokenizer.ggml.scores");
	float *score;
	int rc;

	if (!v || v->type != GGUF_ARRAY || v->item != GGUF_F32 || v->n != (uint64_t)t->vocab.n) {
		snprintf(err, errlen, "tokenizer.ggml.scores: must be an array of %d float32, one for each token",
		         t->vocab.n);
		return -EINVAL;
	}
	score = malloc(v->bytes);    /* a copy, because the file's are unaligned */
	if (score)
		memcpy(score, v->data, v->bytes);
	rc = score ? bpe_create_scored(&t->bpe, &t->vocab, score) : -ENOMEM;
	free(score);
	if (rc)
		snprintf(err, errlen, "tokenizer.ggml.scores: %s", rc == -ENOMEM ? "no memory for the merges" :
		         "a score is not a number, or a token is longer than 256 bytes");
	return rc;
}

static int read_template(struct chat_template *c, const struct gguf *g, const char *key)
{
	struct gguf_string s;

	if (gguf_str(g, key, &s))
		return 0;
	c->source = strndup(s.s, s.n);
	return c->source ? 0 : -ENOMEM;
}

static int read_all(struct sr_text *t, const struct gguf *g, char *err, size_t errlen)
{
	bool scored = false;
	int rc = read_kind(t, g, &scored, err, errlen);

	if (!rc)
		rc = read_tokens(t, g, err, errlen);
	if (!rc)
		rc = scored ? read_scores(t, g, err, errlen) : read_merges(t, g, err, errlen);
	if (!rc && t->vocab.characters)
		rc = text_seal_pieces(t, err, errlen);
	if (!rc)
		rc = read_ends(t, g, err, errlen);
	if (rc)
		return rc;
	t->bpe.whole_first = t->pre.whole_first;
	rc = read_template(&t->chat, g, "tokenizer.chat_template");
	if (!rc)
		rc = read_template(&t->with_tools, g, "tokenizer.chat_template.tool_use");
	if (!rc)
		rc = read_added(t, g);
	if (rc)
		snprintf(err, errlen, "no memory");
	return rc;
}

int open_gguf(struct sr_text *t, const char *path, char *err, size_t errlen)
{
	char why[400] = "";
	struct gguf_file f;
	int rc = gguf_read(&f, path, err, errlen);

	if (rc)
		return rc;
	rc = read_all(t, f.g, why, sizeof(why));
	if (rc)
		snprintf(err, errlen, "%s: %s", path, why);
	gguf_close(&f);
	return rc;
}
