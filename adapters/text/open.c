/* open.c - open and close a model's text side. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/models/locate.h"
#include "core/models/pooling.h"
#include "text.h"

void text_add_stop(struct sr_text *t, int32_t id)
{
	struct sr_text_info *in = &t->info;

	if (id < 0 || in->n_stop == (int32_t)(sizeof(in->stop) / sizeof(*in->stop)))
		return;
	for (int i = 0; i < in->n_stop; i++)
		if (in->stop[i] == id)
			return;
	in->stop[in->n_stop++] = id;
}

int text_seal_pieces(struct sr_text *t, char *err, size_t errlen)
{
	static const char words[] = " *[^ ]+| +";

	for (int b = 0; b < 256; b++)
		if (t->vocab.byte[b] < 0) {
			snprintf(err, errlen, "the vocabulary has no token <0x%02X>, as each byte must have one", b);
			return -EINVAL;
		}
	/* No merge joins a word with the space behind it, so words can be merged one by one. */
	return t->bpe.glued ? 0 : pre_add(&t->pre, words, sizeof(words) - 1, false, false, err, errlen);
}

int text_seal_unigram(struct sr_text *t, char *err, size_t errlen)
{
	static const char words[] = " [^ ]*|[^ ]+";

	return t->unigram.glued ? 0 : pre_add(&t->pre, words, sizeof(words) - 1, false, false, err, errlen);
}

/* A template that does not compile must not prevent completions: sr_text_chat reports the error. */
static void compile_template(struct chat_template *c)
{
	if (c->source)
		text_compile_chat(c, c->source, c->error, sizeof(c->error));
}

/* A sentence may quote names of the file: what would begin a line of its own in a log becomes '?'. */
static void print_safely(char *s)
{
	for (; *s; s++)
		if ((unsigned char)*s < ' ' || *s == 0x7f)
			*s = '?';
}

int sr_text_open(struct sr_text **out, const char *path, char *err, size_t errlen)
{
	struct located where = { .path = "" };
	struct pooling pooling;
	struct sr_text *t;
	struct stat st;
	int rc;

	if (stat(path, &st) < 0) {
		rc = -errno;
		snprintf(err, errlen, "%s: %s", path, strerror(-rc));
		return rc;
	}
	where.gguf = !S_ISDIR(st.st_mode);
	if ((size_t)snprintf(where.path, sizeof(where.path), "%s", path) >= sizeof(where.path)) {
		snprintf(err, errlen, "the path is longer than %zu bytes", sizeof(where.path) - 1);
		return -ENAMETOOLONG;
	}
	t = calloc(1, sizeof(*t));
	if (!t) {
		snprintf(err, errlen, "%s: there is no memory to read it", path);
		return -ENOMEM;
	}
	t->info.bos = t->info.eos = -1;
	t->info.pre = t->pre_name;
	vocab_init(&t->vocab);
	rc = where.gguf ? open_gguf(t, path, err, errlen) : open_json(t, path, err, errlen);
	if (!rc)
		rc = locate_vocab_hash(&where, t->info.vocab_hash, err, errlen);
	if (rc) {
		print_safely(err);
		sr_text_close(t);
		return rc;
	}
	added_seal(&t->before);
	added_seal(&t->after);
	compile_template(&t->chat);
	compile_template(&t->with_tools);
	t->info.chat_template = t->chat.source;
	if (pooling_read(&pooling, path, where.gguf, err, errlen) == 0) {
		t->info.pooling = pooling.kind;
		t->info.unit = pooling.unit;
		t->info.n_labels = pooling.n_labels;
		t->info.activation = (int32_t)pooling.act;
	}
	*out = t;
	return 0;
}

void sr_text_close(struct sr_text *t)
{
	if (!t)
		return;
	template_free(t->chat.compiled);
	template_free(t->with_tools.compiled);
	free(t->chat.source);
	free(t->with_tools.source);
	pre_free(&t->pre);
	added_free(&t->before);
	added_free(&t->after);
	bpe_free(&t->bpe);
	unigram_free(&t->unigram);
	charsmap_free(&t->charsmap);
	vocab_free(&t->vocab);
	if (t->tokens)
		tokens_free(t->tokens);
	free(t->tokens);
	free(t);
}

/* Two threads may make it at once; one of the two stays. */
const struct tokens *text_tokens(const struct sr_text *t)
{
	_Atomic(struct tokens *) *place = (_Atomic(struct tokens *) *)&t->tokens;
	struct tokens *made = atomic_load(place), *none = NULL;

	if (made)
		return made;
	made = calloc(1, sizeof(*made));
	if (!made || tokens_create(made, &t->vocab, (uint32_t)t->info.vocab)) {
		free(made);
		return NULL;
	}
	if (atomic_compare_exchange_strong(place, &none, made))
		return made;
	tokens_free(made);
	free(made);
	return none;
}

const struct sr_text_info *sr_text_info(const struct sr_text *t)
{
	return &t->info;
}
