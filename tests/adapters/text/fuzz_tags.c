/* LINK: @text -ljansson -lpcre2-8 -lutf8proc -lcrypto */
/* fuzz_tags.c - any bytes as a structural tag; an answer to one that compiles never comes to a dead end. */
#include <errno.h>
#include <stdint.h>

#include "tests/rig/walk_rig.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	walk_source(SR_GRAMMAR_TAGS, data, n);
	return 0;
}
