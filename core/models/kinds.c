/* models/kinds.c - kinds of attention: which layers look back at a window only, as a model's files say it.
 *
 * While a model is opened there are two kinds, 0 of layers that attend to all and 1 of those with a window.  A
 * family's reader may give them other ropes, or use kind 1 for something else.  At the end those that no layer
 * has are taken out. */
#include "impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- Hugging Face ------------------------------------------------------------------------------- */

/* Read layer_types: the kind of attention of each layer.  *given: whether it is there. */
static int get_types(struct opening *o, bool *given, int32_t *sliding)
{
	const json_t *types = json_object_get(o->config, "layer_types");

	*given = types && !json_is_null(types);
	if (*given && json_array_size(types) != (size_t)o->m->n_layers)
		return model_fail(o, -EINVAL, "layer_types is no list of %d names, one a layer", o->m->n_layers);
	for (int32_t l = 0; *given && l < o->m->n_layers; l++) {
		const char *type = json_string_value(json_array_get(types, (size_t)l));

		if (type && o->family->has & DELTA && strcmp(type, "linear_attention") == 0)
			continue;              /* model_delta() reads them again */
		if (!type || (strcmp(type, "sliding_attention") != 0 && strcmp(type, "full_attention") != 0))
			return model_fail(o, -ENOTSUP, "layer_types[%d] is %.40s; supported are full_attention, "
			                  "sliding_attention", l, type ? type : "no string");
		o->m->layer[l].kind = strcmp(type, "sliding_attention") == 0;
		*sliding += o->m->layer[l].kind;
	}
	return 0;
}

/* Whether layers have windows at all, and of how many positions: 4096 if nothing says. */
static int hf_positions(struct opening *o, int32_t *window)
{
	bool used = o->family->windows != WINDOW_NEVER && o->family->windows != WINDOW_ASKED;
	int rc;

	if (o->family->windows == WINDOW_ASKED &&
	    (rc = model_bool(o, (struct setting){ "", "use_sliding_window" }, &used)) < 0)
		return rc;
	if (!used || json_is_null(json_object_get(o->config, "sliding_window")))
		return 0;
	/* A family with windows in some layers has none if nothing is said: OLMo 2 is OLMo 3 without them. */
	*window = o->family->windows == WINDOW_SOME ? 0 : 4096;
	rc = model_int(o, (struct setting){ "", "sliding_window" }, 0, 1 << 28, window);
	return rc < 0 ? rc : 0;
}

/* The first layers of which have no window, or every n-th. */
static int hf_without_types(struct opening *o, int32_t window)
{
	int32_t from = 28, each = o->family->full_each;
	int rc = 0;

	if (o->family->windows == WINDOW_ASKED)
		rc = model_int(o, (struct setting){ "", "max_window_layers" }, 0, LAYERS_MAX, &from);
	else
		from = 0;
	if (o->family->windows == WINDOW_SOME && json_is_integer(json_object_get(o->config, "sliding_window_pattern")))
		rc = model_int(o, (struct setting){ "", "sliding_window_pattern" }, 1, LAYERS_MAX, &each);
	for (int32_t l = 0; window && l < o->m->n_layers && rc >= 0; l++)
		o->m->layer[l].kind = each ? (l + 1) % each != 0 : l >= from;
	return rc < 0 ? rc : 0;
}

/* As in transformers' classes, with their defaults. */
static int hf_windows(struct opening *o, int32_t *window)
{
	bool given, all = o->family->windows == WINDOW_ALL;
	int32_t sliding = 0;
	int rc;

	if (o->family->windows == WINDOW_SOME) {
		model_note_asked(o, false, "sliding_window_pattern");
		model_note_asked(o, false, "_sliding_window_pattern"); /* transformers 5 writes it beside layer_types */
	}
	if ((rc = get_types(o, &given, &sliding)) != 0 || (rc = hf_positions(o, window)) != 0)
		return rc;
	if (sliding && !*window)
		return model_fail(o, -ENOTSUP, "layer_types has sliding_attention, but %s",
		                  o->family->windows == WINDOW_ASKED || o->family->windows == WINDOW_SOME
		                  ? "use_sliding_window or sliding_window says that there is no window"
		                  : "this model has no window; full_attention would be right");
	if (given && all && *window && sliding < o->m->n_layers)
		return model_fail(o, -ENOTSUP, "layer_types has full_attention, but sliding_window is %d, which is for "
		                  "all layers; null would be right", *window);
	return given ? 0 : hf_without_types(o, *window);
}

/* ---- GGUF --------------------------------------------------------------------------------------- */

/* attention.sliding_window_pattern: a number, or true for each layer that has the window. */
static int gguf_pattern(struct opening *o)
{
	const struct setting pattern = { "attention.sliding_window_pattern", "" };
	int32_t each = o->family->full_each ? o->family->full_each : LAYERS_MAX + 1;
	const struct gguf_value *v;
	char name[96];
	int rc;

	snprintf(name, sizeof(name), "%s.%s", o->m->arch, pattern.gguf);
	v = gguf_find(o->g, name);
	if (v && v->type == GGUF_ARRAY) {
		model_note_asked(o, false, pattern.gguf);
		if (v->item != GGUF_BOOL || v->n != (uint64_t)o->m->n_layers)
			return model_fail(o, -EINVAL, "%s is no list of %d booleans, one a layer", name, o->m->n_layers);
		for (int32_t l = 0; l < o->m->n_layers; l++)
			o->m->layer[l].kind = v->data[l] != 0;
		return 0;
	}
	if ((rc = model_int(o, pattern, 1, LAYERS_MAX, &each)) < 0)
		return rc;
	for (int32_t l = 0; l < o->m->n_layers; l++)
		o->m->layer[l].kind = (l + 1) % each != 0;
	return 0;
}

static int gguf_windows(struct opening *o, int32_t *window)
{
	bool some = o->family->windows == WINDOW_SOME || o->family->windows == WINDOW_ALL;
	int rc = model_int(o, (struct setting){ "attention.sliding_window", "" }, 0, INT32_MAX, window);

	if (rc < 0)
		return rc;
	if (some && *window)
		return gguf_pattern(o);
	if (*window && *window < o->m->context)
		return model_fail(o, -ENOTSUP, "%s.attention.sliding_window is %d of a context of %d: windows are not "
		                  "read from a GGUF of this architecture, and no other program computes them",
		                  o->m->arch, *window, o->m->context);
	*window = 0;
	return 0;
}

/* ---- the kinds ---------------------------------------------------------------------------------- */

/* Give layers their kind by what the files say of windows: 0 attends to all, 1 to a window.  Kind 1 is a copy of
 * kind 0 but for the window, and for a rope of its own; it exists even if no layer has it. */
static int window_kinds(struct opening *o)
{
	struct sr_attn *kind = o->m->kind;
	struct sr_rope second = kind[1].rope;
	int32_t window = 0;
	int rc = o->family->windows == WINDOW_CHUNKS ? 0 : o->g ? gguf_windows(o, &window) : hf_windows(o, &window);

	kind[1] = kind[0];
	kind[1].window = window;
	if (o->rope[1].obj)
		kind[1].rope = second;
	o->m->n_kinds = 2;
	return rc;
}

/* Take out the kinds that no layer has. */
static void used_kinds(struct opening *o)
{
	struct sr_model *m = o->m;
	int32_t to[SR_KINDS], n = 0;

	for (int32_t i = 0; i < m->n_kinds; i++) {
		bool used = false;

		for (int32_t l = 0; l < m->n_layers; l++)
			used |= m->layer[l].kind == i;
		to[i] = n;
		if (used)
			m->kind[n++] = m->kind[i];
	}
	m->n_kinds = n;
	for (int32_t l = 0; l < m->n_layers; l++)
		m->layer[l].kind = to[m->layer[l].kind];
}

int model_family_settings(struct opening *o)
{
	int rc = window_kinds(o);

	if (!rc && o->family->has & ROW_NORM)
		o->m->kind[0].qk_norm = o->m->kind[1].qk_norm = SR_QK_ROW;
	if (!rc && o->family->has & O_GATE)
		o->m->kind[0].gate = o->m->kind[1].gate = 1;
	if (!rc && o->family->has & DELTA)
		rc = model_delta(o);
	if (!rc)
		rc = model_experts(o);
	if (!rc && o->family->read)
		rc = o->family->read(o);
	if (!rc)
		rc = o->g ? model_check_gguf(o) : model_check_config(o);
	used_kinds(o);
	return rc;
}
