/* models/families.c - the families of models that run, a row each: their names, and what their layers have
 * beyond the plain llama's.  A family whose parts are all known to kernels/ needs nothing but a row, a test
 * and a word in docs/model.md. */
#include "impl.h"

#include <stdio.h>
#include <string.h>

const struct model_family model_families[MODEL_FAMILIES] = {
	{ "LlamaForCausalLM",   "llama",   "llama", UNTIED,            WINDOW_NEVER, true },
	{ "MistralForCausalLM", "mistral", NULL,    UNTIED,            WINDOW_ALL,   false },
	{ "Qwen2ForCausalLM",   "qwen2",   "qwen2", UNTIED | QKV_BIAS, WINDOW_ASKED, false },
	{ "Qwen3ForCausalLM",   "qwen3",   "qwen3", UNTIED | QK_NORM,  WINDOW_ASKED, false },
};

static const char *family_name(const struct model_family *f, bool gguf)
{
	return gguf ? f->gguf : f->class;
}

const struct model_family *model_family_find(const char *name, bool gguf)
{
	for (int i = 0; i < MODEL_FAMILIES; i++) {
		const char *is = family_name(&model_families[i], gguf);

		if (name && is && strcmp(is, name) == 0)
			return &model_families[i];
	}
	return NULL;
}

const char *model_family_names(char *buf, size_t size, bool gguf)
{
	size_t at = 0;

	buf[0] = 0;
	for (int i = 0; i < MODEL_FAMILIES && at < size; i++) {
		const char *is = family_name(&model_families[i], gguf);

		if (is)
			at += (size_t)snprintf(buf + at, size - at, "%s%s", at ? ", " : "", is);
	}
	return buf;
}

const char *model_class_of(const char *arch)
{
	const struct model_family *f = model_family_find(arch, true);

	return f ? f->class : NULL;
}
