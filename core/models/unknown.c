/* models/unknown.c - the sentence for a family that is not known: its name, what in its settings is computed
 * nowhere here, and the nearest family that runs. */
#include "impl.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Settings whose presence, above 0, shows a mechanism that no back end has. */
static const struct { const char *hf, *gguf, *what; } lacking[] = {
	{ "mamba_d_state", "ssm.state_size", "layers with a state instead of keys and values" },
	{ "ssm_state_size", "ssm.state_size", "layers with a state instead of keys and values" },
	{ "conv_L_cache", "shortconv.l_cache", "layers of short convolutions" },
	{ "index_topk", "attention.indexer.top_k", "attention to chosen tokens" },
	{ "altup_num_inputs", "altup.num_inputs", "several residual streams" },
};

static bool has_setting(const struct opening *o, const char *hf, const char *gguf)
{
	char key[128];
	uint64_t v = 0;

	if (!o->g)
		return json_number_value(json_object_get(o->config, hf)) > 0;
	snprintf(key, sizeof(key), "%s.%s", o->m->arch, gguf);
	return gguf_u64(o->g, key, &v) == 0 && v > 0;
}

/* The known name that begins most like this one; the first, if none shares more than a letter. */
static const char *nearest(const char *name, bool gguf)
{
	const char *best = gguf ? model_families[0].gguf : model_families[0].class;
	size_t most = 1;

	for (int i = 0; i < model_n_families; i++) {
		const char *is = gguf ? model_families[i].gguf : model_families[i].class;
		size_t same = 0;

		while (is && name && name[same] && strncasecmp(is, name, same + 1) == 0)
			same++;
		if (same > most) {
			most = same;
			best = is;
		}
	}
	return best;
}

int model_unknown_family(struct opening *o, const char *where, const char *name)
{
	const char *key = NULL, *what = NULL;
	char because[160] = "";

	for (size_t i = 0; i < sizeof(lacking) / sizeof(*lacking) && !what; i++)
		if (has_setting(o, lacking[i].hf, lacking[i].gguf)) {
			key = o->g ? lacking[i].gguf : lacking[i].hf;
			what = lacking[i].what;
		}
	if (what)
		snprintf(because, sizeof(because), ": its %s means %s, which are not computed here", key, what);
	return model_fail(o, -ENOTSUP, "%s %.60s is not supported%s; %d are (docs/model.md), and the nearest name is %s",
	                  where, name ? name : "(none)", because, model_n_families,
	                  nearest(name, o->g != NULL));
}
