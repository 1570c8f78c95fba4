/* config_differ.c - which settings two configs differ in, by the table in options.c. */
#include "config.h"

#include <string.h>

#include "options.h"

static bool same_text(const char *a, const char *b)
{
	return a == b || (a && b && strcmp(a, b) == 0);
}

static bool same_value(const struct option *o, const struct config *x, const struct config *y)
{
	const void *a = (const char *)x + o->at, *b = (const char *)y + o->at;
	const char *const *s = a, *const *t = b;

	switch ((enum kind)o->kind) {
	case YESNO:
		return *(const bool *)a == *(const bool *)b;
	case INT: case WORD:
		return *(const int *)a == *(const int *)b;
	case SIZE: case SIZE_AUTO: case U64:
		return *(const int64_t *)a == *(const int64_t *)b;
	case NUMBER:
		return !(*(const double *)a < *(const double *)b || *(const double *)a > *(const double *)b);
	case TEXT:
		return same_text(*s, *t);
	case LIST: case PARTS:
		for (int i = 0; i < CONFIG_LIST && i < *(const int *)(s + CONFIG_LIST); i++)
			if (*(const int *)(s + CONFIG_LIST) != *(const int *)(t + CONFIG_LIST) ||
			    !same_text(s[i], t[i]))
				return false;
		return *(const int *)(s + CONFIG_LIST) == *(const int *)(t + CONFIG_LIST);
	}
	return true;
}

int config_differ(const struct config *a, const struct config *b, enum config_for who, const char **name,
                  int most)
{
	int n = 0;

	for (int i = 0; i < n_options && n < most; i++)
		if (options[i].action == SET && options[i].who & who && !same_value(&options[i], a, b))
			name[n++] = options[i].name;
	return n;
}
