/* LINK: core/models/safetensors.c core/instance/refuse.c -ljansson */
/* fuzz_safetensors.c - any bytes give a table whose tensors tile the data, or an error sentence. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/models/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

/* The fuzzer's header, with its length before it; the first byte: bytes of data. */
int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	uint64_t len = n ? n - 1 : 0, file = 8 + len + (n ? p[0] : 0), bytes = 0;
	uint8_t *q = malloc(8 + len);
	struct safetensors *s;
	char err[300] = "";

	for (int i = 0; i < 8; i++)
		q[i] = (uint8_t)(len >> 8 * i);
	for (uint64_t i = 0; i < len; i++)
		q[8 + i] = p[1 + i];
	if (safetensors_parse(&s, q, 8 + len, file, err, sizeof(err)) == 0) {
		for (uint64_t i = 0; i < s->n; i++) {
			bytes += s->tensor[i].bytes;
			if (s->tensor[i].offset < 8 + len ||
			    s->tensor[i].offset + s->tensor[i].bytes > file ||
			    (i && strcmp(s->tensor[i - 1].name, s->tensor[i].name) >= 0))
				abort();
		}
		if (bytes != file - 8 - len)
			abort();
		safetensors_free(s);
	} else if (s || !err[0]) {
		abort();
	}
	free(q);
	if (safetensors_parse(&s, p, n, n, err, sizeof(err)) == 0)    /* and the raw bytes */
		safetensors_free(s);
	return 0;
}
