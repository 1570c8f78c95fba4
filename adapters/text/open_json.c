/* open_json.c - a tokenizer from a Hugging Face directory: tokenizer.json, with tokenizer_config.json,
 * chat_template.jinja, generation_config.json and config.json beside it.
 *
 * A feature of tokenizer.json that is not implemented is refused, and the error names it: ids that are
 * almost right are wrong.
 */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "open_json.h"

#define FILE_MAX (64 << 20)
#define IDS_ANY  (1 << 18)     /* ids below it are allowed in each file, */
#define IDS_EACH 16            /* and this many for each token: a file may leave ids out */

int reject_file(const struct json_reader *j, int rc, const char *file, const char *what, const char *name)
{
	snprintf(j->err, j->errlen, "%s/%s: %s%s%.80s%s", j->dir, file, what, name ? " '" : "", name ? name : "",
	         name ? rc == -ENOTSUP ? "' is not supported" : "'" : "");
	return rc;
}

/* Load a file of the directory.  1 and its JSON object; 0: there is no such file; or an error. */
static int load_file(const struct json_reader *j, const char *file, size_t flags, json_t **out)
{
	char path[4352];
	json_error_t e;
	struct stat st;

	snprintf(path, sizeof(path), "%s/%s", j->dir, file);
	if (stat(path, &st) < 0 && errno == ENOENT)
		return 0;
	if (stat(path, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > FILE_MAX)
		return reject_file(j, -EINVAL, file, "must be a regular file of at most 64 MiB", NULL);
	*out = json_load_file(path, flags, &e);
	if (!*out) {
		snprintf(j->err, j->errlen, "%s: line %d: %s", path, e.line, e.text);
		return -EINVAL;
	}
	if (json_is_object(*out))
		return 1;
	json_decref(*out);
	return reject_file(j, -EINVAL, file, "must be a JSON object", NULL);
}

/* ---- tokenizer.json ------------------------------------------------------------------------- */

/* One normalizer: NFC; or of SentencePiece "Replace" and "Prepend". */
static int read_normal_form(const struct json_reader *j, const json_t *n)
{
	struct sr_text *t = j->t;

	if (!strcmp(type_name_of(n), "NFC")) {
		t->nfc = true;
	} else if (!strcmp(type_name_of(n), "Replace") &&
	           is_text(json_object_get(json_object_get(n, "pattern"), "String"), " ") &&
	           is_text(json_object_get(n, "content"), SPACE_MARK)) {
		t->vocab.characters = true;
	} else if (!strcmp(type_name_of(n), "Prepend") && is_text(json_object_get(n, "prepend"), SPACE_MARK)) {
		t->lead = LEAD_ALWAYS;
	} else {
		return reject_file(j, -ENOTSUP, TOKENIZER, "normalizer", type_name_of(n));
	}
	return 0;
}

int read_normalizers(const struct json_reader *j, const json_t *n,
                     int (*read_one)(const struct json_reader *j, const json_t *n))
{
	json_t *item;
	size_t i;
	int rc = 0;

	if (!n || json_is_null(n))
		return 0;
	if (strcmp(type_name_of(n), "Sequence"))
		return read_one(j, n);
	json_array_foreach(json_object_get(n, "normalizers"), i, item)
		if (!rc)
			rc = read_one(j, item);
	return rc;
}

/* SentencePiece as one pre-tokenizer: replaces spaces, puts one before the text, may cut at each. */
int read_metaspace(const struct json_reader *j, const json_t *p)
{
	const json_t *scheme = json_object_get(p, "prepend_scheme");
	const char *when = json_is_string(scheme) ? json_string_value(scheme) :
	                   json_is_false(json_object_get(p, "add_prefix_space")) ? "never" : "always";
	struct sr_text *t = j->t;
	char why[400];

	if (!is_text(json_object_get(p, "replacement"), SPACE_MARK) || t->lead != LEAD_NONE ||
	    (strcmp(when, "always") && strcmp(when, "first") && strcmp(when, "never")))
		return reject_file(j, -ENOTSUP, TOKENIZER, "pre_tokenizer Metaspace with prepend_scheme", when);
	t->vocab.characters = true;
	t->lead = strcmp(when, "never") ? LEAD_UNLESS_SPACE : LEAD_NONE;
	t->lead_once = !strcmp(when, "first");
	if (json_is_false(json_object_get(p, "split")))
		return 0;
	return pre_add(&t->pre, " [^ ]*|[^ ]+", 12, false, false, why, sizeof(why)) ?
	       reject_file(j, -ENOTSUP, TOKENIZER, why, NULL) : 0;
}

/* The pre-tokenizer of a SentencePiece vocabulary. */
static int read_character_pre(const struct json_reader *j, const json_t *p)
{
	if (!p || json_is_null(p))
		return 0;
	if (!strcmp(type_name_of(p), "Metaspace"))
		return read_metaspace(j, p);
	/* Gemma's has no effect: its normalizer leaves no space to split at */
	if (!strcmp(type_name_of(p), "Split") && j->t->vocab.characters &&
	    is_text(json_object_get(json_object_get(p, "pattern"), "String"), " "))
		return 0;
	return reject_file(j, -ENOTSUP, TOKENIZER, "with SentencePiece's normalizer the pre_tokenizer",
	                   type_name_of(p));
}

/* Which decoders undo that: their order and what they do is fixed, but for the space stripped at first. */
static int read_character_decoder(const struct json_reader *j, const json_t *d)
{
	static const char *const known[] = { "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace" };
	const json_t *list = json_object_get(d, "decoders");
	size_t i, k;
	json_t *item;

	if (!strcmp(type_name_of(d), "Metaspace"))
		j->t->strip = j->t->lead != LEAD_NONE;
	else if (d && !json_is_null(d) && strcmp(type_name_of(d), "Sequence"))
		return reject_file(j, -ENOTSUP, TOKENIZER, "with SentencePiece's vocabulary the decoder",
		                   type_name_of(d));
	json_array_foreach(list, i, item) {
		for (k = 0; k < 5 && strcmp(type_name_of(item), known[k]); k++)
			;
		if (k == 5)
			return reject_file(j, -ENOTSUP, TOKENIZER, "decoder", type_name_of(item));
		if (k == 4)
			j->t->strip = j->t->lead != LEAD_NONE;
		if (k == 3 && (!is_text(json_object_get(item, "content"), " ") ||
		               json_integer_value(json_object_get(item, "start")) > 1 ||
		               json_integer_value(json_object_get(item, "stop")) != 0))
			return reject_file(j, -ENOTSUP, TOKENIZER, "decoder", "Strip of more than a first space");
		if (k == 3)
			j->t->strip = json_integer_value(json_object_get(item, "start")) == 1;
	}
	return 0;
}

static int read_split(const struct json_reader *j, const json_t *p)
{
	const json_t *pattern = json_object_get(p, "pattern");
	const json_t *re = json_object_get(pattern, "Regex"), *plain = json_object_get(pattern, "String");
	const char *behavior = json_string_value(json_object_get(p, "behavior"));
	const json_t *s = re ? re : plain;
	bool invert = is_true(p, "invert");
	bool drop = behavior && !strcmp(behavior, "Removed") && invert;
	char why[400];
	int rc;

	if (!json_is_string(s))
		return reject_file(j, -EINVAL, TOKENIZER, "a pre_tokenizer Split has no pattern", NULL);
	if (!behavior || (strcmp(behavior, "Isolated") && !drop))
		return reject_file(j, -ENOTSUP, TOKENIZER, "pre_tokenizer Split with behavior",
		                   behavior ? behavior : "");
	rc = pre_add(&j->t->pre, json_string_value(s), json_string_length(s), !re, drop, why, sizeof(why));
	return rc ? reject_file(j, rc, TOKENIZER, why, NULL) : 0;
}

static int read_pre(const struct json_reader *j, const json_t *p, bool *byte_level)
{
	const char *type = type_name_of(p), *re = NULL;
	char why[400];
	json_t *item;
	size_t i;
	int rc;

	if (!strcmp(type, "Sequence")) {
		json_array_foreach(json_object_get(p, "pretokenizers"), i, item) {
			if (!strcmp(type_name_of(item), "Sequence"))
				return reject_file(j, -ENOTSUP, TOKENIZER, "pre_tokenizer Sequence inside a", "Sequence");
			rc = read_pre(j, item, byte_level);
			if (rc)
				return rc;
		}
		return 0;
	}
	if (*byte_level)
		return reject_file(j, -ENOTSUP, TOKENIZER, "a pre_tokenizer after ByteLevel:", type);
	if (!strcmp(type, "Split"))
		return read_split(j, p);
	if (!strcmp(type, "Digits")) {
		re = is_true(p, "individual_digits") ? "\\p{N}" : "\\p{N}+";
	} else if (!strcmp(type, "ByteLevel")) {
		*byte_level = true;
		if (is_true(p, "add_prefix_space"))
			return reject_file(j, -ENOTSUP, TOKENIZER, "pre_tokenizer ByteLevel with", "add_prefix_space");
		if (!json_is_false(json_object_get(p, "use_regex")))
			re = pre_gpt2;
	} else {
		return reject_file(j, -ENOTSUP, TOKENIZER, "pre_tokenizer", type);
	}
	rc = re ? pre_add(&j->t->pre, re, strlen(re), false, false, why, sizeof(why)) : 0;
	return rc ? reject_file(j, rc, TOKENIZER, why, NULL) : 0;
}

/* Tables are as long as the largest id: a small file must not ask for large ones. */
static int check_id(const struct json_reader *j, json_int_t id, size_t n_tokens, const char *token)
{
	json_int_t most = n_tokens < IDS_ANY / IDS_EACH ? IDS_ANY : (json_int_t)n_tokens * IDS_EACH;

	if (id < most)
		return 0;
	snprintf(j->err, j->errlen, "%s/" TOKENIZER ": the id of '%.80s' is %" JSON_INTEGER_FORMAT "; with %zu "
	         "tokens, ids must be below %" JSON_INTEGER_FORMAT, j->dir, token, id, n_tokens, most);
	return -EINVAL;
}

/* model.vocab: {token: id}; of unigrams [[token, score] of id 0, ..]. */
static int read_entries(const struct json_reader *j, json_t *vocab, size_t n_tokens)
{
	static const char none[] = "model.vocab: there is no memory, or no id of its own, for";
	struct vocab *v = &j->t->vocab;
	const char *key;
	json_t *item;
	size_t i, n;

	json_object_keylen_foreach(vocab, key, n, item) {
		int rc = check_id(j, json_integer_value(item), n_tokens, key);

		if (rc)
			return rc;
		rc = json_is_integer(item) ? vocab_set(v, json_integer_value(item), key, n, 0) : -EINVAL;
		if (rc)
			return reject_file(j, rc, TOKENIZER, none, key);
	}
	json_array_foreach(vocab, i, item) {
		const json_t *s = json_array_get(item, 0);
		int rc = json_is_string(s) ? vocab_set(v, (int64_t)i, json_string_value(s), json_string_length(s), 0)
		                           : -EINVAL;

		if (rc)
			return reject_file(j, rc, TOKENIZER, none, json_string_value(s));
	}
	return 0;
}

static int read_vocab(const struct json_reader *j, const json_t *model, const json_t *added)
{
	struct vocab *v = &j->t->vocab;
	json_t *vocab = json_object_get(model, "vocab"), *item;
	size_t n = json_object_size(vocab) + json_array_size(vocab) + json_array_size(added), i;
	int rc = read_entries(j, vocab, n);

	if (rc)
		return rc;
	json_array_foreach(added, i, item) {
		const json_t *id = json_object_get(item, "id"), *s = json_object_get(item, "content");

		rc = check_id(j, json_integer_value(id), n, json_is_string(s) ? json_string_value(s) : "");
		if (rc)
			return rc;
		if (!json_is_integer(id) || !json_is_string(s) || !json_string_length(s) ||
		    vocab_set(v, json_integer_value(id), json_string_value(s), json_string_length(s),
		              VOCAB_ADDED | (is_true(item, "special") ? VOCAB_SPECIAL : 0)))
			return reject_file(j, -EINVAL, TOKENIZER, "added_tokens: each needs an id and a content "
			                                          "of its own",
			                   json_string_value(s));
		if (is_true(item, "single_word"))
			return reject_file(j, -ENOTSUP, TOKENIZER, "added_tokens with", "single_word");
	}
	rc = vocab_seal(v);
	j->t->info.vocab = v->n;
	return rc ? reject_file(j, rc, TOKENIZER, "no memory", NULL) : 0;
}

static int read_added_tokens(const struct json_reader *j, const json_t *added, bool unigrams)
{
	const struct vocab *v = &j->t->vocab;
	json_t *item;
	size_t i;

	json_array_foreach(added, i, item) {
		int32_t id = (int32_t)json_integer_value(json_object_get(item, "id"));
		struct added_token a = { v->chars + v->spelling[id].at, v->spelling[id].n, id,
		                         is_true(item, "special"), is_true(item, "lstrip"), is_true(item, "rstrip") };

		/* its content would be normalized, too, and begin with a space */
		if (is_true(item, "normalized") && j->t->lead == LEAD_ALWAYS && !unigrams)
			return reject_file(j, -ENOTSUP, TOKENIZER, "beside normalizer Prepend, added_tokens with",
			                   "normalized");
		if (added_put(is_true(item, "normalized") ? &j->t->after : &j->t->before, &a))
			return reject_file(j, -ENOMEM, TOKENIZER, "no memory", NULL);
	}
	return 0;
}

int read_json_tokens(const struct json_reader *j, const json_t *root, bool unigrams)
{
	const json_t *added = json_object_get(root, "added_tokens"), *model = json_object_get(root, "model");
	const json_t *vocab = json_object_get(model, "vocab");
	int rc;

	if (unigrams ? !json_is_array(vocab) : !json_is_object(vocab))
		return reject_file(j, -EINVAL, TOKENIZER, unigrams ? "model.vocab is not an array"
		                                                   : "model.vocab is not an object", NULL);
	rc = read_vocab(j, model, added);
	return rc ? rc : read_added_tokens(j, added, unigrams);
}

static int read_merge_list(const struct json_reader *j, const json_t *model)
{
	const json_t *merges = json_object_get(model, "merges");
	struct bpe *b = &j->t->bpe;
	json_t *item;
	size_t i;
	int rc;

	if (!json_is_array(merges) || json_array_size(merges) > INT32_MAX / 4)
		return reject_file(j, -EINVAL, TOKENIZER, "model.merges is not an array", NULL);
	if (bpe_create(b, &j->t->vocab, (uint32_t)json_array_size(merges)))
		return reject_file(j, -ENOMEM, TOKENIZER, "no memory", NULL);
	json_array_foreach(merges, i, item) {
		const json_t *l = json_array_get(item, 0), *r = json_array_get(item, 1);
		const char *s = json_string_value(item), *space = s && *s ? strchr(s + 1, ' ') : NULL;

		if (space)
			rc = bpe_add(b, s, (size_t)(space - s), space + 1,
			             json_string_length(item) - (size_t)(space + 1 - s));
		else if (json_is_string(l) && json_is_string(r) && json_array_size(item) == 2)
			rc = bpe_add(b, json_string_value(l), json_string_length(l), json_string_value(r),
			             json_string_length(r));
		else
			rc = -EINVAL;
		if (rc) {
			snprintf(j->err, j->errlen, "%s/" TOKENIZER ": model.merges[%zu]: not two tokens that make "
			         "a third",
			         j->dir, i);
			return rc;
		}
	}
	b->whole_first = is_true(model, "ignore_merges");
	return 0;
}

static int read_model(const struct json_reader *j, const json_t *root)
{
	const json_t *model = json_object_get(root, "model");
	static const char *const must_be_empty[] = { "dropout", "continuing_subword_prefix",
	                                             "end_of_word_suffix" };
	char why[200];
	int rc;

	/* files from before 2020 have no type; only BPE has merges */
	if (!json_is_object(model) || (json_object_get(model, "type") && strcmp(type_name_of(model), "BPE")))
		return reject_file(j, -ENOTSUP, TOKENIZER, "model", type_name_of(model));
	for (size_t i = 0; i < sizeof(must_be_empty) / sizeof(*must_be_empty); i++) {
		const json_t *v = json_object_get(model, must_be_empty[i]);

		if (v && !json_is_null(v) && json_string_length(v))
			return reject_file(j, -ENOTSUP, TOKENIZER, "model with", must_be_empty[i]);
		if (json_is_number(v) && json_number_value(v) != 0)
			return reject_file(j, -ENOTSUP, TOKENIZER, "model with", must_be_empty[i]);
	}
	if (is_true(model, "byte_fallback") != j->t->vocab.characters)
		return reject_file(j, -ENOTSUP, TOKENIZER, "byte_fallback is only known with SentencePiece's "
		                                           "spaces, and needed there; model", type_name_of(model));
	rc = read_json_tokens(j, root, false);
	if (!rc)
		rc = read_merge_list(j, model);
	if (!rc && j->t->vocab.characters && text_seal_pieces(j->t, why, sizeof(why)))
		rc = reject_file(j, -EINVAL, TOKENIZER, why, NULL);
	return rc;
}

/* WordPiece: BertNormalizer, BertPreTokenizer and the decoder are its parts. */
static int read_wordpiece(const struct json_reader *j, const json_t *root)
{
	const json_t *model = json_object_get(root, "model"), *n = json_object_get(root, "normalizer");
	const json_t *strip = json_object_get(n, "strip_accents");
	const json_t *most = json_object_get(model, "max_input_chars_per_word");
	const json_t *unknown = json_object_get(model, "unk_token");
	json_int_t chars = json_is_integer(most) ? json_integer_value(most) : 100;
	struct sr_text *t = j->t;
	struct wordpiece *w = &t->wordpiece;
	int rc;

	if (strcmp(type_name_of(n), "BertNormalizer"))
		return reject_file(j, -ENOTSUP, TOKENIZER, "beside WordPiece, normalizer", type_name_of(n));
	if (strcmp(type_name_of(json_object_get(root, "pre_tokenizer")), "BertPreTokenizer"))
		return reject_file(j, -ENOTSUP, TOKENIZER, "beside WordPiece, pre_tokenizer",
		                   type_name_of(json_object_get(root, "pre_tokenizer")));
	if (!is_text(json_object_get(model, "continuing_subword_prefix"), "##"))
		return reject_file(j, -ENOTSUP, TOKENIZER, "WordPiece with another prefix than ##", NULL);
	*w = (struct wordpiece){ .on = true, .clean = is_true(n, "clean_text"), .lower = is_true(n, "lowercase"),
		.chinese = is_true(n, "handle_chinese_chars"), .most = (uint32_t)chars };
	w->strip = json_is_boolean(strip) ? json_is_true(strip) : w->lower;
	if (chars < 1 || chars > WORDPIECE_MOST)
		return reject_file(j, -ENOTSUP, TOKENIZER, "max_input_chars_per_word must be 1 to 200", NULL);
	t->vocab.words = t->strip = true;
	rc = read_json_tokens(j, root, false);
	if (rc)
		return rc;
	w->unknown = json_is_string(unknown) ? vocab_by_spelling(&t->vocab, json_string_value(unknown),
	                                                         json_string_length(unknown)) : -1;
	return w->unknown >= 0 ? 0 : reject_file(j, -EINVAL, TOKENIZER, "model.unk_token is no token", NULL);
}

/* BertProcessing, and RobertaProcessing for a single text: {"cls": [name, id], "sep": [name, id]}. */
static int read_bert_post(const struct json_reader *j, const json_t *p)
{
	const json_t *first = json_array_get(json_object_get(p, "cls"), 1);
	const json_t *last = json_array_get(json_object_get(p, "sep"), 1);
	json_int_t cls = json_integer_value(first), sep = json_integer_value(last);
	struct sr_text *t = j->t;

	if (!json_is_integer(first) || !json_is_integer(last))
		return reject_file(j, -ENOTSUP, TOKENIZER, "without ids in cls and sep, post_processor",
		                   type_name_of(p));
	if (cls < 0 || cls >= t->info.vocab || sep < 0 || sep >= t->info.vocab || t->n_prefix || t->n_suffix)
		return reject_file(j, -EINVAL, TOKENIZER, "post_processor: cls or sep is no id", NULL);
	t->prefix[t->n_prefix++] = (int32_t)cls;
	t->suffix[t->n_suffix++] = (int32_t)sep;
	t->pair_types = !strcmp(type_name_of(p), "BertProcessing");
	for (int i = t->pair_types; i < 2; i++)      /* RoBERTa parts texts by two */
		t->between[t->n_between++] = (int32_t)sep;
	t->n_between_first = t->n_between;
	return 0;
}

/* Special ids of one item of a template: of a pair, where pieces are counted by `part`. */
static bool pair_item(struct sr_text *t, const json_t *ids, int part, int at[3], bool second)
{
	json_t *id;
	size_t k;

	json_array_foreach(ids, k, id) {
		const int32_t v = (int32_t)json_integer_value(id);
		const int32_t *same = part == 0 ? t->prefix : t->suffix;
		const int n = part == 0 ? t->n_prefix : t->n_suffix;

		if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= t->info.vocab)
			return false;
		if (part != 1 && (at[part] >= n || same[at[part]] != v))
			return false;
		if (part == 1 && t->n_between == TEXT_EDGE)
			return false;
		if (part == 1) {
			t->between[t->n_between++] = v;
			t->n_between_first += !second;
		}
		at[part]++;
	}
	return true;
}

/* Which ids a template puts between two texts.  Before and behind them must be those of a single text, and
 * types must only rise; else pairs are refused when they are asked for. */
static bool read_pair(struct sr_text *t, const json_t *pair, const json_t *table)
{
	int part = 0, at[3] = { 0, 0, 0 };
	bool second = false;
	json_t *item;
	size_t i;

	t->n_between = t->n_between_first = 0;
	t->pair_types = false;
	json_array_foreach(pair, i, item) {
		const json_t *special = json_object_get(item, "SpecialToken");
		const json_t *text = json_object_get(item, "Sequence");
		const json_t *of = special ? special : text;
		const char *id = json_string_value(json_object_get(of, "id"));
		const json_int_t type = json_integer_value(json_object_get(of, "type_id"));

		if (!id || type < second || type > 1 || (text && (part == 2 || strcmp(id, part ? "B" : "A"))))
			return false;
		if (type && !part)                   /* the first text is of the second type */
			return false;
		second = type;
		t->pair_types |= second;
		if (text)
			part++;
		else if (!pair_item(t, json_object_get(json_object_get(table, id), "ids"), part, at, second))
			return false;
	}
	return part == 2 && at[0] == t->n_prefix && at[2] == t->n_suffix;
}

/* Read which ids TemplateProcessing puts before and after a single text. */
static int read_post(const struct json_reader *j, const json_t *p)
{
	const json_t *single = json_object_get(p, "single"), *table = json_object_get(p, "special_tokens");
	struct sr_text *t = j->t;
	bool behind = false;
	json_t *item, *id;
	size_t i, k;

	if (!p || json_is_null(p) || !strcmp(type_name_of(p), "ByteLevel"))
		return 0;
	if (!strcmp(type_name_of(p), "Sequence")) {
		json_array_foreach(json_object_get(p, "processors"), i, item) {
			int rc = strcmp(type_name_of(item), "Sequence") ? read_post(j, item) : -ENOTSUP;

			if (rc)
				return rc;
		}
		return 0;
	}
	if (!strcmp(type_name_of(p), "BertProcessing") || !strcmp(type_name_of(p), "RobertaProcessing"))
		return read_bert_post(j, p);
	if (strcmp(type_name_of(p), "TemplateProcessing"))
		return reject_file(j, -ENOTSUP, TOKENIZER, "post_processor", type_name_of(p));
	json_array_foreach(single, i, item) {
		const json_t *special = json_object_get(item, "SpecialToken");
		const char *name = json_string_value(json_object_get(special, "id"));

		if (!special) {
			behind = true;
			continue;
		}
		json_array_foreach(json_object_get(json_object_get(table, name ? name : ""), "ids"), k, id) {
			int *n = behind ? &t->n_suffix : &t->n_prefix;
			json_int_t v = json_integer_value(id);

			if (*n == TEXT_EDGE || !json_is_integer(id) || v < 0 || v >= t->info.vocab)
				return reject_file(j, -EINVAL, TOKENIZER, "post_processor: the id does not exist in", name);
			(behind ? t->suffix : t->prefix)[(*n)++] = (int32_t)v;
		}
	}
	t->no_pairs = !read_pair(t, json_object_get(p, "pair"), table);
	return 0;
}

static int read_byte_level(const struct json_reader *j, const json_t *pre, const json_t *decoder)
{
	bool byte_level = false;
	int rc = 0;

	if (j->t->lead != LEAD_NONE)
		return reject_file(j, -ENOTSUP, TOKENIZER, "without Replace, normalizer", "Prepend");
	if (!json_is_null(pre))
		rc = read_pre(j, pre, &byte_level);
	if (!rc && !byte_level)
		rc = reject_file(j, -ENOTSUP, TOKENIZER, "a pre_tokenizer that does not end with ByteLevel", NULL);
	if (!rc && decoder && !json_is_null(decoder) && strcmp(type_name_of(decoder), "ByteLevel"))
		rc = reject_file(j, -ENOTSUP, TOKENIZER, "decoder", type_name_of(decoder));
	return rc;
}

static int read_tokenizer(const struct json_reader *j, const json_t *root)
{
	const json_t *decoder = json_object_get(root, "decoder");
	const json_t *pre = json_object_get(root, "pre_tokenizer");
	int rc;

	if (!strcmp(type_name_of(json_object_get(root, "model")), "WordPiece")) {
		rc = read_wordpiece(j, root);
		return rc ? rc : read_post(j, json_object_get(root, "post_processor"));
	}
	if (!strcmp(type_name_of(json_object_get(root, "model")), "Unigram")) {
		rc = read_unigram(j, root);
		return rc ? rc : read_post(j, json_object_get(root, "post_processor"));
	}
	rc = read_normalizers(j, json_object_get(root, "normalizer"), read_normal_form);
	if (rc)
		return rc;
	if (j->t->vocab.characters || !strcmp(type_name_of(pre), "Metaspace")) {
		rc = read_character_pre(j, pre);
		if (!rc)
			rc = read_character_decoder(j, decoder);
	} else {
		rc = read_byte_level(j, pre, decoder);
	}
	if (!rc)
		rc = read_model(j, root);
	if (!rc)
		rc = read_post(j, json_object_get(root, "post_processor"));
	return rc;
}

/* ---- the files beside it -------------------------------------------------------------------- */

/* The id of a token, given as "x" or {"content": "x"}; -1 if there is none. */
static int32_t token_named(const struct sr_text *t, const json_t *v)
{
	const json_t *s = json_is_object(v) ? json_object_get(v, "content") : v;

	return json_is_string(s) ? vocab_by_spelling(&t->vocab, json_string_value(s), json_string_length(s)) : -1;
}

/* chat_template is the source itself, or a list of {name, template}: "default", and "tool_use" for chats
 * with tools. */
static const char *template_named(const json_t *v, const char *wanted)
{
	const char *name;
	json_t *item;
	size_t i;

	if (json_is_string(v))
		return strcmp(wanted, "default") ? NULL : json_string_value(v);
	json_array_foreach(v, i, item) {
		name = json_string_value(json_object_get(item, "name"));
		if (name && !strcmp(name, wanted))
			return json_string_value(json_object_get(item, "template"));
	}
	return NULL;
}

static int read_template_file(const struct json_reader *j)
{
	char path[4352];
	struct stat st;
	FILE *f;
	char *s;
	size_t n;

	snprintf(path, sizeof(path), "%s/chat_template.jinja", j->dir);
	f = fopen(path, "re");
	if (!f)
		return 0;
	if (fstat(fileno(f), &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > 1 << 20) {
		fclose(f);
		return reject_file(j, -EINVAL, "chat_template.jinja", "must be a regular file of at most "
		                                                      "1 MiB", NULL);
	}
	s = malloc((size_t)st.st_size + 1);
	n = s ? fread(s, 1, (size_t)st.st_size, f) : 0;
	fclose(f);
	if (!s)
		return reject_file(j, -ENOMEM, "chat_template.jinja", "no memory", NULL);
	s[n] = 0;
	free(j->t->chat.source);
	j->t->chat.source = s;
	return 0;
}

static int read_tokenizer_config(const struct json_reader *j)
{
	struct sr_text *t = j->t;
	const char *chat, *with_tools;
	json_t *root;
	/* as reals, because model_max_length is often 10^30 */
	int rc = load_file(j, "tokenizer_config.json", JSON_DECODE_INT_AS_REAL, &root);

	if (rc <= 0)
		return rc;
	t->info.bos = token_named(t, json_object_get(root, "bos_token"));
	t->info.eos = token_named(t, json_object_get(root, "eos_token"));
	chat = template_named(json_object_get(root, "chat_template"), "default");
	with_tools = template_named(json_object_get(root, "chat_template"), "tool_use");
	t->chat.source = chat ? strdup(chat) : NULL;
	t->with_tools.source = with_tools ? strdup(with_tools) : NULL;
	/* the post-processor has it, except in old files of Llama */
	if (!t->n_prefix && !t->n_between && t->info.bos >= 0 && is_true(root, "add_bos_token"))
		t->prefix[t->n_prefix++] = t->between[t->n_between++] = t->info.bos;
	if ((chat && !t->chat.source) || (with_tools && !t->with_tools.source))
		rc = reject_file(j, -ENOMEM, "tokenizer_config.json", "there is no memory for its chat "
		                                                      "templates", NULL);
	json_decref(root);
	return rc < 0 ? rc : 0;
}

int32_t json_id(const json_t *v, int32_t n)
{
	json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;

	return id >= 0 && id < n ? (int32_t)id : -1;
}

/* A model may have more rows than there are tokens, so that their number is round.  The tables of a guide are
 * as long: beyond IDS_ANY there may be twice as many rows as tokens. */
static int read_rows(const struct json_reader *j, const char *file, const json_t *root)
{
	const json_int_t rows = json_integer_value(json_object_get(root, "vocab_size")), n = j->t->info.vocab;
	char what[160];

	if (rows > IDS_ANY && rows > 2 * n) {
		snprintf(what, sizeof(what), "vocab_size is %" JSON_INTEGER_FORMAT ", but tokenizer.json has %"
		         JSON_INTEGER_FORMAT " ids; twice as many are possible", rows, n);
		return reject_file(j, -EINVAL, file, what, NULL);
	}
	if (rows > n)
		j->t->info.vocab = (int32_t)rows;
	return 0;
}

/* Read eos_token_id of config.json or generation_config.json: a number or a list. */
static int read_stops(const struct json_reader *j, const char *file)
{
	struct sr_text *t = j->t;
	json_t *root, *eos, *id;
	size_t i;
	int rc = load_file(j, file, 0, &root);

	if (rc <= 0)
		return rc;
	eos = json_object_get(root, "eos_token_id");
	text_add_stop(t, json_id(eos, t->info.vocab));
	json_array_foreach(eos, i, id)
		text_add_stop(t, json_id(id, t->info.vocab));
	rc = read_rows(j, file, root);
	json_decref(root);
	return rc;
}

int open_json(struct sr_text *t, const char *dir, char *err, size_t errlen)
{
	struct json_reader j = { t, dir, err, errlen };
	json_t *root;
	int rc = load_file(&j, TOKENIZER, 0, &root);

	if (rc == 0)
		return reject_file(&j, -ENOENT, TOKENIZER, "there is no such file", NULL);
	if (rc < 0)
		return rc;
	rc = read_tokenizer(&j, root);
	json_decref(root);
	if (!rc)
		rc = read_tokenizer_config(&j);
	if (!rc)
		rc = read_template_file(&j);
	text_add_stop(t, t->info.eos);
	if (!rc)
		rc = read_stops(&j, "generation_config.json");
	if (!rc)
		rc = read_stops(&j, "config.json");
	t->info.add_bos = t->n_prefix && t->prefix[0] == t->info.bos;
	snprintf(t->pre_name, sizeof(t->pre_name), "tokenizer.json");
	return rc;
}
