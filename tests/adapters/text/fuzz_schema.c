/* LINK: @text -ljansson -lpcre2-8 -lutf8proc -lcrypto */
/* fuzz_schema.c - any bytes as a JSON Schema; if it compiles, an answer made of the rest of the bytes' choices is
 * never a dead end.  The first byte chooses the options. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/rig/guide_rig.h"

#define STEPS 200

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static struct sr_text *bytes(void)
{
	static char byte[255][2];
	static const char *words[256];
	static struct sr_text *t;

	for (int b = 1; b < 256 && !t; b++) {
		byte[b - 1][0] = (char)b;
		words[b - 1] = byte[b - 1];
	}
	words[255] = "<end>";
	if (!t)
		t = rig_text(words, 256);
	return t;
}

/* Draw allowed ids, chosen by the bytes of the schema, until the end or STEPS. */
static void walk(struct sr_grammar *g, const uint8_t *data, size_t n)
{
	uint32_t bits[8], allowed[256], count;
	struct sr_guide *u;
	struct sr_next next;

	if (sr_guide_open(&u, g))
		abort();
	for (size_t i = 0; i < STEPS; i++) {
		if (sr_guide_next(u, &next, bits))
			break;          /* over its budget: said by a code */
		rig_bits(u, bytes(), bits);
		count = 0;
		for (uint32_t id = 0; id < 256; id++)
			if (rig_allows(bits, (int32_t)id))
				allowed[count++] = id;
		if (!count)
			abort();
		count = allowed[(data[i % n] + i) % count];
		if (count == 255)
			break;
		if (sr_guide_take(u, (int32_t)count) == -EINVAL)
			abort();
	}
	sr_guide_close(u);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct sr_grammar_options o = { .size = sizeof(o) };
	struct sr_grammar *g;
	char err[1024];
	int rc;

	if (n < 2)
		return 0;
	o.lenient = data[0] & 1;
	o.additional_properties = data[0] & 2;
	o.disable_any_whitespace = data[0] & 4;
	rc = sr_grammar_open(&g, bytes(), SR_GRAMMAR_JSON, (const char *)data + 1, n - 1, &o, err, sizeof(err));
	if (rc && !err[0])
		abort();                /* refused without a word */
	if (rc)
		return 0;
	walk(g, data, n);
	sr_grammar_close(g);
	return 0;
}
