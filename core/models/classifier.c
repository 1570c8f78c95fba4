/* models/classifier.c - classifiers of whole prompts: how many labels there are, and where their tensors lie.  What
 * BERT calls pooler and classifier, RoBERTa classifier.dense and classifier.out_proj, and ModernBERT head and
 * classifier, is one thing in struct sr_model; in a GGUF it has one set of names, too.  Decoders have a row for each
 * label and nothing else.
 */
#include "impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define LABELS_MAX 65536

/* ---- settings ------------------------------------------------------------------------------- */

/* As many rows as the file has; its list of names, if it has one, must be as long. */
static int gguf_labels(struct opening *o, int32_t *out)
{
	const struct gguf_tensor *t = gguf_tensor(o->g, "cls.output.weight");
	uint64_t n = t->n_dims == 1 ? 1 : t->dim[1];
	const struct gguf_value *names;
	char key[96];

	if (t->n_dims > 2 || n < 1 || n > LABELS_MAX)
		return model_fail(o, -EINVAL, "tensor cls.output.weight is no matrix of 1 to %d rows, one for each label",
		                  LABELS_MAX);
	snprintf(key, sizeof(key), "%s.classifier.output_labels", o->m->arch);
	model_note_asked(o, false, "classifier.output_labels");
	names = gguf_find(o->g, key);
	if (names && names->n != n)
		return model_fail(o, -EINVAL, "%s has %" PRIu64 " names, but tensor cls.output.weight %" PRIu64 " rows", key,
		                  names->n, n);
	*out = (int32_t)n;
	return 0;
}

/* As transformers counts them: num_labels, or the names in id2label, or 2. */
static int hf_labels(struct opening *o, int32_t *out)
{
	const json_t *names = model_ask(o, o->config, "id2label");
	int32_t n = json_is_object(names) ? (int32_t)json_object_size(names) : 2;
	const bool named = json_is_object(names);
	int rc;

	*out = n;
	rc = model_int(o, (struct setting){ "", "num_labels" }, 1, LABELS_MAX, out);
	if (rc < 0)
		return rc;
	if (named && *out != n)
		return model_fail(o, -EINVAL, "num_labels is %d, but id2label has %d names", *out, n);
	if (n < 1 || n > LABELS_MAX)
		return model_fail(o, -EINVAL, "id2label has %d names; 1 to %d are possible", n, LABELS_MAX);
	return 0;
}

int model_classifier_settings(struct opening *o, enum model_head head)
{
	struct sr_classifier *c = &o->m->classifier;

	c->act = head == HEAD_MODERN ? SR_HEAD_GELU : SR_HEAD_TANH;
	if (o->dummy)
		return model_fail(o, -ENOTSUP, "--load-format dummy: not for a model with a classifier");
	return o->g ? gguf_labels(o, &c->n_labels) : hf_labels(o, &c->n_labels);
}

/* ---- tensors -------------------------------------------------------------------------------- */

enum shape { WIDE /* [D][D] */, ROW /* [D] */, LABELS /* [n_labels][D] */, EACH /* [n_labels] */ };

/* biased: only where config.json says classifier_bias, or a GGUF has it. */
struct head_spec { enum model_head head; const char *hf, *gguf; size_t at; enum shape shape; bool biased; };

#define AT(field) offsetof(struct sr_classifier, field)
static const struct head_spec specs[] = {
	{ HEAD_BERT, "bert.pooler.dense.weight", "cls.weight", AT(dense), WIDE, false },
	{ HEAD_BERT, "bert.pooler.dense.bias", "cls.bias", AT(dense_bias), ROW, false },
	{ HEAD_BERT, "classifier.weight", "cls.output.weight", AT(labels), LABELS, false },
	{ HEAD_BERT, "classifier.bias", "cls.output.bias", AT(labels_bias), EACH, false },
	{ HEAD_ROBERTA, "classifier.dense.weight", "cls.weight", AT(dense), WIDE, false },
	{ HEAD_ROBERTA, "classifier.dense.bias", "cls.bias", AT(dense_bias), ROW, false },
	{ HEAD_ROBERTA, "classifier.out_proj.weight", "cls.output.weight", AT(labels), LABELS, false },
	{ HEAD_ROBERTA, "classifier.out_proj.bias", "cls.output.bias", AT(labels_bias), EACH, false },
	{ HEAD_MODERN, "head.dense.weight", "cls.weight", AT(dense), WIDE, false },
	{ HEAD_MODERN, "head.dense.bias", "cls.bias", AT(dense_bias), ROW, true },
	{ HEAD_MODERN, "head.norm.weight", "cls.norm.weight", AT(norm), ROW, false },
	{ HEAD_MODERN, "classifier.weight", "cls.output.weight", AT(labels), LABELS, false },
	{ HEAD_MODERN, "classifier.bias", "cls.output.bias", AT(labels_bias), EACH, false },
	{ HEAD_SCORE, "score.weight", "cls.output.weight", AT(labels), LABELS, false },
};
#undef AT
#define N_SPECS ((int)(sizeof(specs) / sizeof(*specs)))

static bool is_there(struct opening *o, const struct head_spec *s)
{
	if (!s->biased)
		return true;
	return o->g ? gguf_tensor(o->g, s->gguf) != NULL : json_is_true(model_ask(o, o->config, "classifier_bias"));
}

static int check_found(struct opening *o, const char *name, const struct sr_tensor *t, enum shape shape,
                       const struct found_tensor *f)
{
	const bool vector = shape == ROW || shape == EACH, one = t->n == 1;
	const uint64_t last = f->n_dims ? f->dim[f->n_dims - 1] : 0;

	if (f->type == SR_NONE || (f->type > SR_BF16 && (!o->g || one)))
		return model_fail(o, -ENOTSUP, "tensor %s is of type %s; supported are F32, F16, BF16", name, f->type_name);
	if (last == (uint64_t)t->k && (f->n_dims == 2 ? f->dim[0] == (uint64_t)t->n && !vector : f->n_dims == 1 && one))
		return 0;
	return model_fail(o, -EINVAL, "tensor %s has not the shape [%d][%d] of this model's settings (labels or width, and "
	                  "width)", name, t->n, t->k);
}

static int take(struct opening *o, const struct head_spec *s)
{
	const char *name = o->g ? s->gguf : s->hf;
	struct sr_tensor *t = (struct sr_tensor *)((char *)&o->m->classifier + s->at);
	const int32_t D = o->m->d_model, n = o->m->classifier.n_labels;
	struct found_tensor f = { .type = SR_NONE };
	int rc;

	*t = (struct sr_tensor){ .count = 1, .n = s->shape == WIDE ? D : s->shape == LABELS ? n : 1,
	                         .k = s->shape == EACH ? n : D };
	rc = o->g ? model_find_gguf(o, name, &f) : model_find_hf(o, name, &f);
	if (rc == 1 && o->g && s->head == HEAD_BERT && s->shape == WIDE)
		return model_fail(o, -EINVAL, "tensor cls.weight is missing: the program that made this file left the pooler "
		                  "out, without which the classifier's answers would be others; use the directory");
	if (rc == 1)
		return model_fail(o, -EINVAL, "tensor %s is missing", name);
	if (rc || (rc = check_found(o, name, t, s->shape, &f)) != 0)
		return rc;
	t->name = strdup(name);
	if (!t->name)
		return model_no_memory(o);
	t->type = f.type;
	t->data = f.data;
	o->md->weight_bytes += f.data.bytes;
	return 0;
}

int model_take_classifier(struct opening *o, enum model_head head)
{
	int rc = 0;

	for (int i = 0; i < N_SPECS && !rc; i++)
		if (specs[i].head == head && is_there(o, &specs[i]))
			rc = take(o, &specs[i]);
	return rc;
}

struct sr_tensor *model_classifier_tensor(struct sr_model *m, int i)
{
	struct sr_classifier *c = &m->classifier;
	struct sr_tensor *const all[] = { &c->dense, &c->dense_bias, &c->norm, &c->norm_bias, &c->labels, &c->labels_bias };

	return i < (int)(sizeof(all) / sizeof(*all)) ? all[i] : NULL;
}
