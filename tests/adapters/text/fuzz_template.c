/* LINK: @template -ljansson -lutf8proc */
/* fuzz_template.c - any bytes as a chat template, rendered over a small conversation. */
#include <stdint.h>
#include <stdlib.h>

#include "adapters/text/template/template.h"
#include "adapters/text/unicode/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static json_t *vars;
	struct template_budget b = { .steps = 20000, .output = 1 << 16 };
	struct template *t;
	char err[256], *out;
	int64_t len;

	if (!vars)
		vars = json_loads("{\"messages\": [{\"role\": \"user\", \"content\": \"h\u00e9 'x'\"}, {\"role\": \"tool\","
		                  "\"content\": [1, 2.5, null, {\"k\": \"v\"}]}], \"add_generation_prompt\": true, \"n\": -3,"
		                  "\"s\": \"a b\\nc\", \"bos_token\": \"<s>\"}", 0, NULL);
	if (template_compile(&t, (const char *)data, n, err, sizeof(err)))
		return 0;
	len = template_render(t, vars, &b, &out, err, sizeof(err));
	if (len >= 0) {
		if (!utf8_valid(out, (size_t)len) || out[len])
			abort();
		free(out);
	}
	template_free(t);
	return 0;
}
