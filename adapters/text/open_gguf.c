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

/* of tokenizer.ggml.token_type */
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER = 4 };

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

/* A GGUF marks tokens that begin a word by U+2581; WordPiece marks the others, by ##. */
static int set_word(struct vocab *v, int64_t id, struct gguf_string s, unsigned kind)
{
	const bool special = s.n > 2 && s.s[0] == '[' && s.s[s.n - 1] == ']';
	char *name;
	int rc;

	if (s.n > 3 && !memcmp(s.s, "\xe2\x96\x81", 3))
		return vocab_set(v, id, s.s + 3, s.n - 3, kind);
	if (special || s.n > 1 << 20) /* older files have [unused1] as it is */
		return vocab_set(v, id, s.s, s.n, kind);
	name = malloc(s.n + 2);
	if (!name)
		return -ENOMEM;
	memcpy(name, "##", 2);
	memcpy(name + 2, s.s, s.n);
	rc = vocab_set(v, id, name, s.n + 2, kind);
	free(name);
	return rc;
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

		rc = t->vocab.words && type != TYPE_CONTROL ? set_word(&t->vocab, (int64_t)i, s, kind)
		                                            : vocab_set(&t->vocab, (int64_t)i, s.s, s.n, kind);
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

/* Phi-3's added tokens take the white space behind them, among them </s>, which is no control token; three do
 * not.  A GGUF file does not say so; tokenizer.json does. */
static bool takes_space(const struct added_token *a, const struct gguf *g)
{
	static const char *const others[] = { "<unk>", "<s>", "<|endoftext|>" };
	struct gguf_string arch;

	if (gguf_str(g, "general.architecture", &arch) || arch.n != 4 || memcmp(arch.s, "phi3", 4))
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

/* A bool; *out stays as it is where the file has none. */
static int read_flag(const struct gguf *g, const char *key, bool *out, char *err, size_t errlen)
{
	if (gguf_bool(g, key, out) != -EINVAL)
		return 0;
	snprintf(err, errlen, "%s: must be a bool", key);
	return -EINVAL;
}

/* WordPiece: [CLS] text [SEP], and the token of words that no tokens make. */
static int read_word_ends(struct sr_text *t, const struct gguf *g, char *err, size_t errlen)
{
	int32_t cls, sep, unknown;
	bool first = true, last = true;

	if (read_id(t, g, "tokenizer.ggml.cls_token_id", &cls, err, errlen) ||
	    read_id(t, g, "tokenizer.ggml.seperator_token_id", &sep, err, errlen) ||
	    read_id(t, g, "tokenizer.ggml.unknown_token_id", &unknown, err, errlen) ||
	    read_flag(g, "tokenizer.ggml.add_bos_token", &first, err, errlen) ||
	    read_flag(g, "tokenizer.ggml.add_sep_token", &last, err, errlen))
		return -EINVAL;
	cls = t->info.bos >= 0 ? t->info.bos : cls >= 0 ? cls : special_id(t, "[CLS]");
	sep = sep >= 0 ? sep : special_id(t, "[SEP]");
	t->wordpiece.unknown = unknown >= 0 ? unknown : special_id(t, "[UNK]");
	if (t->wordpiece.unknown < 0 || (first && cls < 0) || (last && sep < 0)) {
		snprintf(err, errlen, "tokenizer.ggml.unknown_token_id, cls_token_id, seperator_token_id: one is "
		         "missing");
		return -EINVAL;
	}
	if (first)
		t->prefix[t->n_prefix++] = cls;
	if (last)
		t->suffix[t->n_suffix++] = sep;
	if (last)
		t->between[t->n_between++] = sep;
	t->n_between_first = t->n_between;
	t->pair_types = true;
	return 0;
}

/* Between two texts: ModernBERT has the end of one, RoBERTa and XLM-R have it twice, decoders begin again. */
static void read_between(struct sr_text *t, const struct gguf *g)
{
	struct gguf_string arch = { "", 0 };
	bool once = gguf_str(g, "general.architecture", &arch) == 0 && arch.n == 11 &&
		!memcmp(arch.s, "modern-bert", 11);

	for (int i = 0; t->n_suffix && i < 2 - once; i++)
		t->between[t->n_between++] = t->suffix[0];
	if (!t->n_suffix && t->n_prefix)
		t->between[t->n_between++] = t->prefix[0];
	t->n_between_first = t->n_between;
}

static int read_ends(struct sr_text *t, const struct gguf *g, char *err, size_t errlen)
{
	static const char *const stops[] = { "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id" };
	bool add_bos = t->pre.add_bos, add_eos = t->unigram.on;
	int32_t id;

	if (read_id(t, g, "tokenizer.ggml.bos_token_id", &t->info.bos, err, errlen) ||
	    read_id(t, g, "tokenizer.ggml.eos_token_id", &t->info.eos, err, errlen))
		return -EINVAL;
	if (t->vocab.words)
		return read_word_ends(t, g, err, errlen);
	text_add_stop(t, t->info.eos);
	for (size_t i = 0; i < sizeof(stops) / sizeof(*stops); i++) {
		if (read_id(t, g, stops[i], &id, err, errlen))
			return -EINVAL;
		text_add_stop(t, id);
	}
	add_turn_ends(t);
	if (read_flag(g, "tokenizer.ggml.add_bos_token", &add_bos, err, errlen) ||
	    read_flag(g, "tokenizer.ggml.add_eos_token", &add_eos, err, errlen))
		return -EINVAL;
	t->info.add_bos = add_bos && t->info.bos >= 0;
	if (t->info.add_bos)
		t->prefix[t->n_prefix++] = t->info.bos;
	if (add_eos && t->info.eos >= 0)
		t->suffix[t->n_suffix++] = t->info.eos;
	read_between(t, g);
	return 0;
}

/* tokenizer.ggml.model gpt2: byte-level BPE. */
static int read_byte_level(struct sr_text *t, const struct gguf *g, char *err, size_t errlen)
{
	struct gguf_string pre = { "default", 7 };
	bool space = false;
	int rc;

	if (read_flag(g, "tokenizer.ggml.add_space_prefix", &space, err, errlen))
		return -EINVAL;
	if (space) {
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

	if (read_flag(g, "tokenizer.ggml.add_space_prefix", &space, err, errlen))
		return -EINVAL;
	t->vocab.characters = true;
	t->lead = space ? LEAD_ALWAYS : LEAD_NONE;
	t->strip = space;
	t->pre.add_bos = true;
	snprintf(t->pre_name, sizeof(t->pre_name), "%s", llama ? "sentencepiece" : "gemma4");
	return 0;
}

/* bert: WordPiece.  Its words are cut as BertNormalizer and BertPreTokenizer do. */
static int read_words(struct sr_text *t, const struct gguf *g, char *err, size_t errlen)
{
	struct wordpiece *w = &t->wordpiece;

	*w = (struct wordpiece){ .on = true, .clean = true, .chinese = true, .lower = true, .most = 100 };
	if (read_flag(g, "tokenizer.ggml.normalizer.lowercase", &w->lower, err, errlen))
		return -EINVAL;
	w->strip = w->lower;
	if (read_flag(g, "tokenizer.ggml.normalizer.strip_accents", &w->strip, err, errlen))
		return -EINVAL;
	t->vocab.words = t->strip = t->pre.add_bos = true;
	snprintf(t->pre_name, sizeof(t->pre_name), "wordpiece");
	return 0;
}

/* t5: unigrams. */
static int read_unigrams(struct sr_text *t, const struct gguf *g, char *err, size_t errlen)
{
	const struct gguf_value *map = gguf_find(g, "tokenizer.ggml.precompiled_charsmap");
	bool space = false, merge = false, suffix = false;
	int rc;

	if (read_flag(g, "tokenizer.ggml.add_space_prefix", &space, err, errlen) ||
	    read_flag(g, "tokenizer.ggml.remove_extra_whitespaces", &merge, err, errlen) ||
	    read_flag(g, "tokenizer.ggml.treat_whitespace_as_suffix", &suffix, err, errlen))
		return -EINVAL;
	if (suffix || (merge && !space)) {
		snprintf(err, errlen, "tokenizer.ggml.%s is not supported with unigrams", suffix ?
		         "treat_whitespace_as_suffix" : "remove_extra_whitespaces without add_space_prefix");
		return -ENOTSUP;
	}
	t->vocab.characters = true;
	t->white = merge ? WHITE_MERGED : WHITE_KEPT;
	t->lead = space ? LEAD_ALWAYS : LEAD_NONE;
	t->strip = space;
	snprintf(t->pre_name, sizeof(t->pre_name), "unigram");
	if (!map)
		return 0;
	rc = map->type == GGUF_ARRAY && (map->item == GGUF_U8 || map->item == GGUF_I8)
	     ? charsmap_create(&t->charsmap, map->data, map->n) : -EINVAL;
	if (rc)
		snprintf(err, errlen, "tokenizer.ggml.precompiled_charsmap: %s", rc == -ENOMEM ? "no memory" :
		         "must be an array of bytes, and hold a table of sentencepiece");
	t->step[0] = STEP_CHARSMAP;
	return rc;
}

enum gguf_kind { KIND_MERGES, KIND_SCORED, KIND_WORDS, KIND_UNIGRAMS };

static int read_kind(struct sr_text *t, const struct gguf *g, enum gguf_kind *kind, char *err, size_t errlen)
{
	static const struct { const char *name; enum gguf_kind kind; } known[] = {
		{ "gpt2", KIND_MERGES }, { "gemma4", KIND_MERGES }, { "llama", KIND_SCORED }, { "bert", KIND_WORDS },
		{ "t5", KIND_UNIGRAMS },
	};
	struct gguf_string model;

	if (gguf_str(g, "tokenizer.ggml.model", &model)) {
		snprintf(err, errlen, "tokenizer.ggml.model: missing, or no string");
		return -EINVAL;
	}
	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++) {
		if (model.n != strlen(known[i].name) || memcmp(model.s, known[i].name, model.n))
			continue;
		*kind = known[i].kind;
		if (*kind == KIND_WORDS)
			return read_words(t, g, err, errlen);
		if (*kind == KIND_UNIGRAMS)
			return read_unigrams(t, g, err, errlen);
		return i == 0 ? read_byte_level(t, g, err, errlen)
		              : read_characters(t, g, *kind == KIND_SCORED, err, errlen);
	}
	snprintf(err, errlen, "tokenizer.ggml.model '%.*s' is not supported: it must be gpt2 (byte-level BPE), "
	         "llama (SentencePiece BPE), gemma4, bert (WordPiece) or t5 (unigrams)",
	         model.n > 40 ? 40 : (int)model.n, model.s);
	return -ENOTSUP;
}

/* tokenizer.ggml.scores as malloc'ed floats, because the file's are unaligned. */
static int read_floats(const struct sr_text *t, const struct gguf *g, float **out, char *err, size_t errlen)
{
	const struct gguf_value *v = gguf_find(g, "tokenizer.ggml.scores");

	if (!v || v->type != GGUF_ARRAY || v->item != GGUF_F32 || v->n != (uint64_t)t->vocab.n) {
		snprintf(err, errlen, "tokenizer.ggml.scores: must be an array of %d float32, one for each token",
		         t->vocab.n);
		return -EINVAL;
	}
	*out = malloc(v->bytes + 1);
	if (*out)
		memcpy(*out, v->data, v->bytes);
	else
		snprintf(err, errlen, "tokenizer.ggml.scores: no memory");
	return *out ? 0 : -ENOMEM;
}

static int read_scores(struct sr_text *t, const struct gguf *g, char *err, size_t errlen)
{
	float *score;
	int rc = read_floats(t, g, &score, err, errlen);

	if (rc)
		return rc;
	rc = bpe_create_scored(&t->bpe, &t->vocab, score);
	free(score);
	if (rc)
		snprintf(err, errlen, "tokenizer.ggml.scores: %s", rc == -ENOMEM ? "no memory for the merges" :
		         "a score is not a number, or a token is longer than 256 bytes");
	return rc;
}

/* Of unigrams: those of control tokens and unused ones say nothing of what is unknown. */
static int read_unigram_scores(struct sr_text *t, const struct gguf *g, char *err, size_t errlen)
{
	const struct gguf_value *types = gguf_find(g, "tokenizer.ggml.token_type");
	double *score = NULL, least = 0;
	bool any = false;
	float *stored;
	int32_t unknown;
	int rc = read_id(t, g, "tokenizer.ggml.unknown_token_id", &unknown, err, errlen);

	if (!rc)
		rc = read_floats(t, g, &stored, err, errlen);
	if (rc)
		return rc;
	score = malloc(((size_t)t->vocab.n + 1) * sizeof(*score));
	for (int32_t i = 0; score && i < t->vocab.n; i++) {
		score[i] = (double)stored[i];
		if (type_of(types, (uint64_t)i) != TYPE_NORMAL)
			continue;
		least = !any || score[i] < least ? score[i] : least;
		any = true;
	}
	free(stored);
	rc = score ? unigram_create(&t->unigram, &t->vocab, score, least, unknown < 0 ? 2 : unknown) : -ENOMEM;
	if (rc)
		snprintf(err, errlen, "tokenizer.ggml.scores: %s", rc == -ENOMEM ? "no memory" : "a score is not a "
		         "number, a token is longer than 256 bytes, or the unknown token is missing");
	return rc ? rc : text_seal_unigram(t, err, errlen);
}

static int read_template(struct chat_template *c, const struct gguf *g, const char *key, char *err,
                         size_t errlen)
{
	struct gguf_string s;
	int rc = gguf_str(g, key, &s);

	if (rc) {
		snprintf(err, errlen, "%s: must be a string", key);
		return rc == -ENOENT ? 0 : rc;
	}
	c->source = strndup(s.s, s.n);
	if (!c->source)
		snprintf(err, errlen, "no memory");
	return c->source ? 0 : -ENOMEM;
}

static int read_all(struct sr_text *t, const struct gguf *g, char *err, size_t errlen)
{
	enum gguf_kind kind = KIND_MERGES;
	char why[200];
	int rc = read_kind(t, g, &kind, err, errlen);

	if (!rc)
		rc = read_tokens(t, g, err, errlen);
	if (!rc && kind == KIND_UNIGRAMS)
		rc = read_unigram_scores(t, g, err, errlen);
	else if (!rc && kind != KIND_WORDS)
		rc = kind == KIND_SCORED ? read_scores(t, g, err, errlen) : read_merges(t, g, err, errlen);
	if (!rc && t->vocab.characters && kind != KIND_UNIGRAMS &&
	    (rc = text_seal_pieces(t, why, sizeof(why))) != 0)
		snprintf(err, errlen, "tokenizer.ggml.tokens: %s", why);
	if (!rc)
		rc = read_ends(t, g, err, errlen);
	if (rc)
		return rc;
	t->bpe.whole_first = t->pre.whole_first;
	rc = read_template(&t->chat, g, "tokenizer.chat_template", err, errlen);
	if (!rc)
		rc = read_template(&t->with_tools, g, "tokenizer.chat_template.tool_use", err, errlen);
	if (!rc && (rc = read_added(t, g)) != 0)
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
