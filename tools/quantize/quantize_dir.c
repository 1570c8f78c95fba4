/* quantize_dir.c - see quantize_dir.h.  Sources: transformers' configuration classes, the tokenizer.json
 * of its tokenizers library, and ggml's docs/gguf.md.
 */
#include "quantize_dir.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "adapters/text/pretokenize.h"
#include "core/instance/refuse.h"
#include "core/models/gguf.h"
#include "quantize_pieces.h"

enum { TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER = 4 };   /* values of tokenizer.ggml.token_type */

#define SPACE "\u2581"             /* what SentencePiece has for a space */

struct out_dir { const char *dir; char *err; size_t errlen; };

#define fail(o, rc, ...) refuse(rc, (o)->err, (o)->errlen, __VA_ARGS__)

/* Write j to a file and release it. */
static int put_json(const struct out_dir *o, const char *name, json_t *j)
{
	char path[4400];
	int rc = 0;

	snprintf(path, sizeof(path), "%s/%s", o->dir, name);
	if (!j)
		rc = fail(o, -ENOMEM, "%s: no memory, or a text that is not UTF-8", path);
	else if (json_dump_file(j, path, JSON_INDENT(2) | JSON_REAL_PRECISION(16)) != 0)
		rc = fail(o, -EIO, "%s: %s", path, strerror(errno));
	json_decref(j);
	return rc;
}

/* These do not run in float16: vLLM refuses them so. */
static bool needs_bfloat16(const json_t *j)
{
	static const char *const types[] = { "gemma2", "gemma3", "gemma3_text", "gemma4", "gemma4_text", "glm4" };
	const char *type = json_string_value(json_object_get(j, "model_type"));

	for (size_t i = 0; type && i < sizeof(types) / sizeof(*types); i++)
		if (strcmp(type, types[i]) == 0)
			return true;
	return false;
}

/* The type in which others compute: it is that of the scales, unless the family needs another. */
static void put_dtype(json_t *j)
{
	const char *type = needs_bfloat16(j) ? "bfloat16" : "float16";
	json_t *text = json_object_get(j, "text_config");

	json_object_set_new(j, "torch_dtype", json_string(type));
	if (json_object_get(j, "dtype"))
		json_object_set_new(j, "dtype", json_string(type));
	if (json_object_get(text, "torch_dtype"))
		json_object_set_new(text, "torch_dtype", json_string(type));
	if (json_object_get(text, "dtype"))
		json_object_set_new(text, "dtype", json_string(type));
}

/* Write config.json from j, the settings of the original model, and release j. */
static int put_config(const struct out_dir *o, json_t *j, struct quantize_said said)
{
	json_t *left = json_array_size(said.left) ? json_incref(said.left) : json_null();

	json_decref(said.left);
	json_object_set_new(j, "quantization_config",
	                    json_pack("{s:s, s:i, s:i, s:b, s:s, s:o}", "quant_method", "awq", "bits", 4,
	                              "group_size", said.group ? said.group : -1, "zero_point", 1,
	                              "version", "gemm", "modules_to_not_convert", left));
	put_dtype(j);
	return put_json(o, "config.json", j);
}

/* ---- from a directory ----------------------------------------------------------------------- */

static int copy_file(const struct out_dir *o, const char *dir, const char *name)
{
	char path[4400], buffer[1 << 16];
	FILE *from, *to;
	size_t n;
	int rc = 0;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	from = fopen(path, "re");
	if (!from)
		return 0;                  /* most models lack some of these files */
	snprintf(path, sizeof(path), "%s/%s", o->dir, name);
	to = fopen(path, "we");
	while (to && !rc && (n = fread(buffer, 1, sizeof(buffer), from)) > 0)
		rc = fwrite(buffer, 1, n, to) == n ? 0 : -EIO;
	if (!to || ferror(from) || rc || fclose(to) != 0)
		rc = fail(o, -EIO, "%s: %s", path, strerror(errno));
	fclose(from);
	return rc;
}

static int copy_all(const struct out_dir *o, const char *dir, struct quantize_said said)
{
	static const char *const names[] = {
		"generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
		"special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
		"chat_template.jinja", "chat_template.json", "preprocessor_config.json", "processor_config.json",
		"video_preprocessor_config.json", "tekken.json", "LICENSE",
	};
	char path[4200];
	json_error_t why;
	json_t *j;
	int rc = 0;

	for (unsigned i = 0; i < sizeof(names) / sizeof(*names) && !rc; i++)
		rc = copy_file(o, dir, names[i]);
	if (rc)
		return rc;
	snprintf(path, sizeof(path), "%s/config.json", dir);
	j = json_load_file(path, 0, &why);
	return j ? put_config(o, j, said) : fail(o, -EINVAL, "%s: %s", path, why.text);
}

/* ---- from a GGUF file: the model ------------------------------------------------------------ */

/* The double of a float's shortest decimal: 1e-5, not 9.99999974737875e-06. */
static json_t *json_float(float v)
{
	char s[40];

	snprintf(s, sizeof(s), "%.7g", (double)v);
	return json_real(strtod(s, NULL));
}

static json_t *scaling_of(const struct sr_rope *r)
{
	switch (r->kind) {
	case SR_ROPE_LINEAR:
		return json_pack("{s:s, s:o}", "rope_type", "linear", "factor", json_float(r->factor));
	case SR_ROPE_LLAMA3:
		return json_pack("{s:s, s:o, s:o, s:o, s:i}", "rope_type", "llama3", "factor", json_float(r->factor),
		                 "low_freq_factor", json_float(r->low), "high_freq_factor", json_float(r->high),
		                 "original_max_position_embeddings", r->context);
	case SR_ROPE_YARN:
		return json_pack("{s:s, s:o, s:o, s:o, s:o, s:i}", "rope_type", "yarn",
		                 "factor", json_float(r->factor), "beta_slow", json_float(r->low),
		                 "beta_fast", json_float(r->high),
		                 "attention_factor", json_real((double)r->magnitude),
		                 "original_max_position_embeddings", r->context);
	}
	return json_null();
}

static json_t *ends_of(const struct model *md)
{
	json_t *all = json_array();

	for (int32_t i = 0; i < md->n_eos; i++)
		json_array_append_new(all, json_integer(md->eos[i]));
	return all;
}

static json_t *bos_of(const struct gguf *g)
{
	uint64_t id;

	return gguf_u64(g, "tokenizer.ggml.bos_token_id", &id) == 0 ? json_integer((json_int_t)id) : json_null();
}

static json_t *config_of(const struct model *md, const struct gguf *g)
{
	const struct sr_model *m = &md->m;
	const struct sr_attn *kind = &m->kind[0];
	bool bias = m->layer[0].q_bias.type || m->layer[0].o_bias.type;

	return json_pack("{s:[s], s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:o, s:o, s:o, s:b, s:s, s:b, "
	                 "s:o, s:o}",
	                 "architectures", model_class_of(m->arch), "model_type", m->arch,
	                 "hidden_size", m->d_model,
	                 "intermediate_size", m->d_ff, "num_hidden_layers", m->n_layers,
	                 "num_attention_heads", kind->n_heads, "num_key_value_heads", kind->n_kv_heads,
	                 "head_dim", kind->head_dim, "vocab_size", m->n_vocab,
	                 "max_position_embeddings", m->context, "rms_norm_eps", json_float(m->eps),
	                 "rope_theta", json_float(kind->rope.theta), "rope_scaling", scaling_of(&kind->rope),
	                 "tie_word_embeddings", m->head.type == SR_NONE, "hidden_act", "silu",
	                 "attention_bias", bias, "bos_token_id", bos_of(g), "eos_token_id", ends_of(md));
}

/* ---- from a GGUF file: the tokenizer --------------------------------------------------------- */

static int32_t type_of_token(const struct gguf_value *v, uint64_t i)
{
	int32_t type = 1;

	if (v && v->type == GGUF_ARRAY && v->item == GGUF_I32 && i < v->n)
		memcpy(&type, v->data + 4 * i, 4);
	return type;
}

/* The spelling of the token under key, or JSON's null. */
static json_t *spelled(const struct gguf *g, const char *key)
{
	const struct gguf_value *v = gguf_find(g, "tokenizer.ggml.tokens");
	const uint8_t *at = v->data;
	struct gguf_string s;
	uint64_t id;

	if (gguf_u64(g, key, &id) == 0)
		while (gguf_next_string(v, &at, &s))
			if (id-- == 0)
				return json_stringn(s.s, s.n);
	return json_null();
}

/* Fill "vocab" and "added_tokens".  false: no memory, or a token is not UTF-8. */
static bool put_tokens(const struct gguf *g, json_t *vocab, json_t *added)
{
	const struct gguf_value *v = gguf_find(g, "tokenizer.ggml.tokens");
	const struct gguf_value *types = gguf_find(g, "tokenizer.ggml.token_type");
	const uint8_t *at = v->data;
	struct gguf_string s;

	for (uint64_t i = 0; gguf_next_string(v, &at, &s); i++) {
		int32_t type = type_of_token(types, i);
		json_t *text = json_stringn(s.s, s.n);

		if (!text || json_object_set_new(vocab, json_string_value(text), json_integer((json_int_t)i)))
			return false;
		if (type == TYPE_UNKNOWN || type == TYPE_CONTROL || type == TYPE_USER)
			json_array_append_new(added, json_pack("{s:I, s:O, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)i,
				"content", text, "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0,
				"special", type != TYPE_USER));
		json_decref(text);
	}
	return true;
}

static json_t *merges_of(const struct gguf *g)
{
	const struct gguf_value *v = gguf_find(g, "tokenizer.ggml.merges");
	const uint8_t *at = v->data;
	json_t *all = json_array();
	struct gguf_string s;

	while (gguf_next_string(v, &at, &s))
		if (json_array_append_new(all, json_stringn(s.s, s.n))) {
			json_decref(all);
			return NULL;
		}
	return all;
}

static json_t *byte_level(void)
{
	return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1,
	                 "use_regex", 0);
}

static json_t *cuts_of(const char *const *re)
{
	json_t *all = json_array();

	for (int i = 0; i < PRE_STEPS && re[i]; i++)
		json_array_append_new(all, json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex",
		                                     re[i], "behavior", "Isolated", "invert", 0));
	json_array_append_new(all, byte_level());
	return json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", all);
}

/* A post-processor that begins the text with `bos`, unless it is null. */
static json_t *post_of(const struct gguf *g, json_t *bos)
{
	uint64_t id = 0;

	if (json_is_null(bos) || gguf_u64(g, "tokenizer.ggml.bos_token_id", &id))
		return byte_level();
	return json_pack("{s:s, s:[{s:{s:O, s:i}}, {s:{s:s, s:i}}], s:[{s:{s:O, s:i}}, {s:{s:s, s:i}}, "
	                 "{s:{s:s, s:i}}], s:{s:{s:O, s:[I], s:[O]}}}",
	                 "type", "TemplateProcessing",
	                 "single", "SpecialToken", "id", bos, "type_id", 0, "Sequence", "id", "A", "type_id", 0,
	                 "pair", "SpecialToken", "id", bos, "type_id", 0, "Sequence", "id", "A", "type_id", 0,
	                 "Sequence", "id", "B", "type_id", 1,
	                 "special_tokens", json_string_value(bos), "id", bos, "ids", (json_int_t)id, "tokens",
	                 bos);
}

/* Is its vocabulary SentencePiece's, with scores? */
static bool has_pieces(const struct gguf *g)
{
	struct gguf_string kind = { "", 0 };

	gguf_str(g, "tokenizer.ggml.model", &kind);
	return kind.n == 5 && memcmp(kind.s, "llama", 5) == 0;
}

/* Read how the file pre-tokenizes.  pre->add_bos is then the file's value. */
static int read_pre(const struct out_dir *o, const struct gguf *g, struct pre *pre, const char *const **re)
{
	struct gguf_string name = { "default", 7 };
	char why[200];
	int rc;

	gguf_str(g, "tokenizer.ggml.pre", &name);
	rc = pre_named(pre, name.s, name.n, why, sizeof(why));
	if (rc)
		return fail(o, rc, "%s", why);
	pre_free(pre);
	*re = pre_expressions(name.s, name.n);
	gguf_bool(g, "tokenizer.ggml.add_bos_token", &pre->add_bos);
	return 0;
}

/* SentencePiece's space for spaces, one before the text if `lead`. */
static json_t *piece_normalizer(bool lead)
{
	json_t *all = json_array();

	if (lead)
		json_array_append_new(all, json_pack("{s:s, s:s}", "type", "Prepend", "prepend", SPACE));
	json_array_append_new(all, json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", "String", " ",
	                                     "content",
	                                     SPACE));
	return json_pack("{s:s, s:o}", "type", "Sequence", "normalizers", all);
}

static json_t *piece_decoder(bool lead)
{
	json_t *all = json_pack("[{s:s, s:{s:s}, s:s}, {s:s}, {s:s}]", "type", "Replace", "pattern", "String",
	                        SPACE,
	                        "content", " ", "type", "ByteFallback", "type", "Fuse");

	if (lead)
		json_array_append_new(all, json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip", "content", " ",
		                                     "start", 1,
		                                     "stop", 0));
	return json_pack("{s:s, s:o}", "type", "Sequence", "decoders", all);
}

/* tokenizer.json of a SentencePiece vocabulary. */
static json_t *pieces_of(const struct gguf *g, json_t *vocab, json_t *added, json_t *merges, json_t *bos)
{
	bool lead = true;

	gguf_bool(g, "tokenizer.ggml.add_space_prefix", &lead);
	return json_pack("{s:s, s:n, s:n, s:o, s:o, s:n, s:o, s:o, "
	                 "s:{s:s, s:n, s:o, s:n, s:n, s:b, s:b, s:b, s:o, s:o}}",
	                 "version", "1.0", "truncation", "padding", "added_tokens", added,
	                 "normalizer", piece_normalizer(lead), "pre_tokenizer",
	                 "post_processor", json_is_null(bos) ? json_null() : post_of(g, bos),
	                 "decoder", piece_decoder(lead), "model", "type", "BPE", "dropout",
	                 "unk_token", spelled(g, "tokenizer.ggml.unknown_token_id"),
	                 "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 1, "byte_fallback", 1,
	                 "ignore_merges", 0, "vocab", vocab, "merges", merges);
}

static json_t *bytes_of(const struct gguf *g, const struct pre *pre, const char *const *re, json_t *vocab,
                        json_t *added, json_t *merges, json_t *bos)
{
	return json_pack("{s:s, s:n, s:n, s:o, s:o, s:o, s:o, s:o, "
	                 "s:{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:o}}",
	                 "version", "1.0", "truncation", "padding", "added_tokens", added,
	                 "normalizer", pre->nfc ? json_pack("{s:s}", "type", "NFC") : json_null(),
	                 "pre_tokenizer", cuts_of(re), "post_processor", post_of(g, bos), "decoder", byte_level(),
	                 "model", "type", "BPE", "dropout", "unk_token", "continuing_subword_prefix",
	                 "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0,
	                 "ignore_merges", pre->whole_first, "vocab", vocab, "merges", merges);
}

static int put_tokenizer(const struct out_dir *o, const struct gguf *g)
{
	const bool pieces = has_pieces(g);
	struct pre pre = { .add_bos = true };
	const char *const *re = NULL;
	struct gguf_string chat;
	json_t *vocab = json_object(), *added = json_array(), *merges = NULL, *bos, *j;
	int rc = pieces ? 0 : read_pre(o, g, &pre, &re);

	if (pieces)
		gguf_bool(g, "tokenizer.ggml.add_bos_token", &pre.add_bos);
	if (!rc && put_tokens(g, vocab, added))
		merges = pieces ? quantize_pieces_merges(g, vocab) : merges_of(g);
	if (!rc && !merges)
		rc = fail(o, -EINVAL, "a token or a merge of the vocabulary is not UTF-8, or tokens have no scores");
	if (rc) {
		json_decref(vocab);
		json_decref(added);
		return rc;
	}
	bos = pre.add_bos ? spelled(g, "tokenizer.ggml.bos_token_id") : json_null();
	j = pieces ? pieces_of(g, vocab, added, merges, bos) : bytes_of(g, &pre, re, vocab, added, merges, bos);
	json_decref(bos);
	rc = put_json(o, "tokenizer.json", j);
	if (rc)
		return rc;
	bos = spelled(g, "tokenizer.ggml.bos_token_id");
	j = json_pack("{s:s, s:o, s:o, s:b, s:b}", "tokenizer_class", "PreTrainedTokenizerFast", "bos_token", bos,
	              "eos_token", spelled(g, "tokenizer.ggml.eos_token_id"), "add_bos_token", pre.add_bos,
	              "clean_up_tokenization_spaces", 0);
	if (gguf_str(g, "tokenizer.chat_template", &chat) == 0)
		json_object_set_new(j, "chat_template", json_stringn(chat.s, chat.n));
	return put_json(o, "tokenizer_config.json", j);
}

/* ---- the two ---------------------------------------------------------------------------------- */

static int put_from_gguf(const struct out_dir *o, const struct model *md, const struct gguf *g,
                         struct quantize_said said)
{
	int rc = put_tokenizer(o, g);

	if (!rc)
		rc = put_json(o, "generation_config.json", json_pack("{s:o, s:o}", "bos_token_id", bos_of(g),
		                                                     "eos_token_id", ends_of(md)));
	return rc ? rc : put_config(o, config_of(md, g), said);
}

static bool is_strings(const struct gguf *g, const char *key)
{
	const struct gguf_value *v = gguf_find(g, key);

	return v && v->type == GGUF_ARRAY && v->item == GGUF_STRING;
}

int quantize_dir_check(const struct located *from, char *err, size_t errlen)
{
	const struct out_dir o = { NULL, err, errlen };
	struct gguf_file f;
	struct gguf_string kind = { "", 0 };
	int rc;

	if (!from->gguf)
		return 0;
	rc = gguf_read(&f, from->path, err, errlen);
	if (rc)
		return rc;
	gguf_str(f.g, "tokenizer.ggml.model", &kind);
	if (!is_strings(f.g, "tokenizer.ggml.tokens") || (!has_pieces(f.g) &&
	    (kind.n != 4 || memcmp(kind.s, "gpt2", 4) != 0 || !is_strings(f.g, "tokenizer.ggml.merges"))))
		rc = fail(&o, -ENOTSUP, "%s: its tokenizer is '%.*s'; only gpt2 (byte-level BPE with merges) and "
		          "llama "
		          "(SentencePiece) can be written as tokenizer.json", from->path,
		          (int)(kind.n < 40 ? kind.n : 40), kind.s);
	gguf_close(&f);
	return rc;
}

int quantize_dir_write(const struct located *from, const struct model *md, const char *dir,
                       struct quantize_said said,
                       char *err, size_t errlen)
{
	const struct out_dir o = { dir, err, errlen };
	struct gguf_file f;
	int rc;

	if (!from->gguf)
		return copy_all(&o, from->path, said);
	rc = gguf_read(&f, from->path, err, errlen);
	if (rc)
		return rc;
	rc = put_from_gguf(&o, md, f.g, said);
	gguf_close(&f);
	return rc;
}
