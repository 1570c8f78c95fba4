/* hostile_values.h - what tests of hostile files share: values that no setting should have, a walk over all values of
 * a JSON file, and the bounds that opening such a file keeps to.
 */
#ifndef TESTS_HOSTILE_VALUES_H
#define TESTS_HOSTILE_VALUES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define HOSTILE_SECONDS 0.5        /* of CPU, most that an opening may take; 0.01 are usual */

static inline double cpu_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* From here on the process may have `more` bytes of address space beyond what it has; ASan needs all of it. */
static inline int limit_memory(size_t more)
{
#ifndef __SANITIZE_ADDRESS__
	struct rlimit limit;
	unsigned long pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	if (!f || fscanf(f, "%lu", &pages) != 1)
		return -1;
	fclose(f);
	limit.rlim_cur = limit.rlim_max = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + (rlim_t)more;
	return setrlimit(RLIMIT_AS, &limit);
#else
	(void)more;
	return 0;
#endif
}

/* Opening gave rc and, if that is not 0, err; it began at this CPU time. */
static inline void keeps_bounds(int rc, const char *err, double begin, const char *name, const char *what)
{
	if (rc && (rc == -ENOMEM || !err[0] || strchr(err, '\n') || strchr(err, 0x7f) || strlen(err) > 600))
		fail_msg("%s, %s: %d \"%s\"", name, what, rc, err);
	if (cpu_seconds() - begin > HOSTILE_SECONDS)
		fail_msg("%s, %s: took %.2f s", name, what, cpu_seconds() - begin);
}

static inline json_t *long_list(size_t n, json_t *item)
{
	json_t *list = json_array();

	while (n--)
		json_array_append(list, item);
	json_decref(item);
	return list;
}

#define HOSTILE_VALUES 17          /* not a multiple of the step of 7, so that each value is tried somewhere */
static inline json_t *hostile_value(int i)
{
	switch (i) {
	case 0:  return json_null();
	case 1:  return json_integer(0);
	case 2:  return json_integer(-1);
	case 3:  return json_integer(1);
	case 4:  return json_integer(INT32_MAX);
	case 5:  return json_integer(INT64_MAX);
	case 6:  return json_real(1e308);
	case 7:  return json_real(0.5);
	case 8:  return json_string("x");
	case 9:  return json_true();
	case 10: return json_array();
	case 11: return json_object();
	case 12: return long_list(5000, json_integer(1));
	case 13: return json_integer((json_int_t)INT32_MAX + 1);
	case 14: return json_integer((json_int_t)1 << 53);
	case 15: return json_string("NaN");
	default: return long_list(40, json_string("full_attention"));
	}
}

/* How a walk goes: every step-th of all values is tried. */
struct hostile_walk {
	json_t *(*value)(int i);           /* a new one */
	int n_values, step, turn;
	size_t items;                      /* of an array or object that are gone into */
	void (*attempt)(const char *what); /* with the file as it now is */
};

/* Replace each value below `at` by each hostile one in turn.  An array's values are reached only if w->items is not 0. */
static inline void walk_hostile(struct hostile_walk *w, json_t *at, const char *of)
{
	const char *key;
	json_t *old;
	void *next;
	size_t n = 0;

	json_object_foreach_safe(at, next, key, old) {
		char what[200], name[200];

		if (w->items && n++ == w->items)
			break;
		snprintf(name, sizeof(name), "%.150s%s%.40s", of, *of ? "." : "", key);
		json_incref(old);
		if (json_is_object(old) || w->items)
			walk_hostile(w, old, name);
		for (int i = 0; i < w->n_values; i++) {
			if (w->turn++ % w->step)
				continue;
			snprintf(what, sizeof(what), "%.170s with value %d", name, i);
			json_object_set_new(at, key, w->value(i));
			w->attempt(what);
		}
		json_object_set(at, key, old);
		json_decref(old);
	}
	for (n = 0; w->items && n < json_array_size(at) && n < w->items; n++) {
		char what[200], name[200];

		snprintf(name, sizeof(name), "%.150s[%zu]", of, n);
		old = json_incref(json_array_get(at, n));
		walk_hostile(w, old, name);
		for (int i = 0; i < w->n_values; i++) {
			if (w->turn++ % w->step)
				continue;
			snprintf(what, sizeof(what), "%.170s with value %d", name, i);
			json_array_set_new(at, n, w->value(i));
			w->attempt(what);
		}
		json_array_set_new(at, n, old);
	}
}

#endif
