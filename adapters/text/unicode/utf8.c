/* utf8.c - see utf8.h. */
#include <stdlib.h>
#include <string.h>

#include "utf8.h"

unsigned utf8_next(const char *p, size_t n, uint32_t *cp)
{
	const uint8_t *s = (const uint8_t *)p;
	uint8_t low = 0x80, high = 0xbf;    /* the range of the second byte */
	unsigned len, i;
	uint32_t c;

	if (s[0] < 0x80) {
		*cp = s[0];
		return 1;
	}
	if (s[0] >= 0xc2 && s[0] <= 0xdf) {
		len = 2;
		c = s[0] & 0x1f;
	} else if (s[0] >= 0xe0 && s[0] <= 0xef) {
		len = 3;
		c = s[0] & 0x0f;
		if (s[0] == 0xe0)
			low = 0xa0;         /* overlong */
		if (s[0] == 0xed)
			high = 0x9f;        /* surrogates */
	} else if (s[0] >= 0xf0 && s[0] <= 0xf4) {
		len = 4;
		c = s[0] & 0x07;
		if (s[0] == 0xf0)
			low = 0x90;
		if (s[0] == 0xf4)
			high = 0x8f;        /* above U+10FFFF */
	} else {
		*cp = UTF8_BAD;
		return 1;
	}
	for (i = 1; i < len; i++) {
		if (i == n) {
			*cp = UTF8_PARTIAL;
			return i;
		}
		if (s[i] < low || s[i] > high) {
			*cp = UTF8_BAD;
			return i;
		}
		c = c << 6 | (s[i] & 0x3f);
		low = 0x80;
		high = 0xbf;
	}
	*cp = c;
	return len;
}

unsigned utf8_put(uint32_t c, char out[4])
{
	if (c < 0x80) {
		out[0] = (char)c;
		return 1;
	}
	if (c < 0x800) {
		out[0] = (char)(0xc0 | c >> 6);
		out[1] = (char)(0x80 | (c & 0x3f));
		return 2;
	}
	if (c < 0x10000) {
		out[0] = (char)(0xe0 | c >> 12);
		out[1] = (char)(0x80 | (c >> 6 & 0x3f));
		out[2] = (char)(0x80 | (c & 0x3f));
		return 3;
	}
	out[0] = (char)(0xf0 | c >> 18);
	out[1] = (char)(0x80 | (c >> 12 & 0x3f));
	out[2] = (char)(0x80 | (c >> 6 & 0x3f));
	out[3] = (char)(0x80 | (c & 0x3f));
	return 4;
}

bool utf8_valid(const char *s, size_t n)
{
	uint64_t eight;
	uint32_t cp;
	size_t i = 0;

	while (i < n) {
		if (n - i >= 8) {
			memcpy(&eight, s + i, 8);
			if (!(eight & 0x8080808080808080u)) {
				i += 8;
				continue;
			}
		}
		i += utf8_next(s + i, n - i, &cp);
		if (cp >= UTF8_PARTIAL)
			return false;
	}
	return true;
}

char *utf8_repair(const char *s, size_t n, size_t *out_n)
{
	char *out, *p;
	uint32_t cp;
	size_t i = 0;

	if (n > SIZE_MAX / 3 - 1)
		return NULL;
	p = out = malloc(3 * n + 1);    /* worst case: every byte becomes U+FFFD */
	if (!out)
		return NULL;
	while (i < n) {
		i += utf8_next(s + i, n - i, &cp);
		p += utf8_put(cp >= UTF8_PARTIAL ? 0xfffd : cp, p);
	}
	*p = 0;
	*out_n = (size_t)(p - out);
	return out;
}

bool utf8_space(uint32_t c)
{
	return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 ||
	       (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
	       c == 0x205f || c == 0x3000;
}
