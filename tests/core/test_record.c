/* LINK: core/instance/record.c tools/live/record_tape.c tools/live/record_trace.c -lxxhash -ljansson -Wl,--wrap=memfd_create,--wrap=ftruncate,--wrap=mmap,--wrap=fcntl,--wrap=getrandom */
/* test_record.c - a recording: what an entry holds, that the ring wraps without waiting, that a reader
 * knows what it lost and never takes half an entry, and the resulting trace. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/instance/record.h"
#include "tools/live/record_trace.h"

#define LONG 700000              /* tokens: an entry with them would take too much of the room */

/* A tokenizer whose pieces are letters. */
int64_t sr_text_decode(const struct sr_text *t, const int32_t *ids, size_t n, bool skip_special, char *out,
                       size_t cap)
{
	(void)t;
	(void)skip_special;
	for (size_t i = 0; i < n && i < cap; i++)
		out[i] = (char)('a' + ids[i] % 26);
	return (int64_t)n;
}

static struct recorder rec;
static struct tape tape;
static int32_t ids[LONG];

static void start(bool texts)
{
	int fd;

	for (int i = 0; i < LONG; i++)
		ids[i] = i;
	rec = (struct recorder){ .last_id = rec.last_id };
	assert_int_equal(record_start(&rec, texts, 1000, &fd), 0);
	assert_int_equal(tape_open(&tape, fd), 0);
	close(fd);
}

static int end(void **state)
{
	(void)state;
	tape_close(&tape);
	record_stop(&rec);
	return 0;
}

static const uint64_t *hashes(const struct record_entry *e) { return (const void *)(e + 1); }

/* ---- what fails -------------------------------------------------------------------------------- */

static struct {                  /* the next call of this name */
	const char *name;
	int error;               /* 0: too few bytes */
} fault;

static bool fails(const char *name)
{
	if (!fault.name || strcmp(fault.name, name) != 0)
		return false;
	fault.name = NULL;
	errno = fault.error;
	return true;
}

#define WRAP(value, type, name, args, pass) \
	type __real_##name args; type __wrap_##name args; \
	type __wrap_##name args { return fails(#name) ? value : __real_##name pass; }

WRAP(-1, int, memfd_create, (const char *name, unsigned flags), (name, flags))
WRAP(-1, int, ftruncate, (int fd, off_t n), (fd, n))
WRAP(MAP_FAILED, void *, mmap, (void *at, size_t n, int prot, int flags, int fd, off_t o),
     (at, n, prot, flags, fd, o))
WRAP(-1, int, fcntl, (int fd, int cmd, long arg), (fd, cmd, arg))
WRAP(fault.error ? -1 : 3, ssize_t, getrandom, (void *to, size_t n, unsigned flags), (to, n, flags))

/* A recording that cannot begin leaves nothing behind, and the next one can. */
static void test_fails(void **state)
{
	static const struct { const char *name; int error, want; } cases[] = {
		{ "memfd_create", EMFILE, -EMFILE }, { "ftruncate", ENOSPC, -ENOSPC }, { "mmap", ENOMEM, -ENOMEM },
		{ "fcntl", EPERM, -EPERM }, { "getrandom", ENOSYS, -ENOSYS },
		{ "getrandom", 0, -EIO },
	};
	int before, fd, after;

	(void)state;
	rec = (struct recorder){ .last_id = 0 };
	before = dup(0);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		fault.name = cases[i].name;
		fault.error = cases[i].error;
		errno = 0;
		assert_int_equal(record_start(&rec, false, 1000, &fd), cases[i].want);
		assert_null(fault.name);
		assert_null(rec.page);
		record_stop(&rec);                                      /* harmless */
		assert_int_equal(record_start(&rec, false, 1000, &fd), 0);
		assert_int_equal(close(fd), 0);
		record_stop(&rec);
	}
	close(before);
	after = dup(0);
	assert_int_equal(before, after);
	close(after);
}

/* ---- memory ------------------------------------------------------------------------------------ */

static void test_sealed(void **state)
{
	int fd, other, again;
	void *p;

	(void)state;
	rec = (struct recorder){ .last_id = 0 };
	assert_int_equal(record_request(&rec, 1, 0, ids, 5, 5), 0);     /* not recording */
	record_end(&rec, 7, 1, 1, 1);
	assert_int_equal(record_start(&rec, false, 1000, &fd), 0);
	record_end(&rec, 0, 1, 1, 1);                                   /* of a request that was not recorded */
	assert_int_equal(rec.page->n, 0);
	assert_int_equal(record_start(&rec, false, 1000, &other), -EBUSY);
	p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_equal(p, MAP_FAILED);                                /* only the daemon may write */
	assert_int_equal(ftruncate(fd, 0), -1);
	assert_int_equal(pwrite(fd, "x", 1, 0), -1);
	assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
	again = fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE);
	assert_int_equal(again, -1);
	assert_int_equal(tape_open(&tape, fd), 0);
	close(fd);
	assert_null(tape_next(&tape));
}

static void test_not_ours(void **state)
{
	int fd = memfd_create("other", 0);

	(void)state;
	assert_int_equal(tape_open(&tape, fd), -EPROTO);
	assert_int_equal(ftruncate(fd, sizeof(struct record_page)), 0);
	assert_int_equal(tape_open(&tape, fd), -EPROTO);
	assert_null(tape.page);
	close(fd);
	assert_int_equal(tape_open(&tape, -1), -EBADF);
}

/* ---- entries ----------------------------------------------------------------------------------- */

static void test_hashes(void **state)
{
	uint64_t first[3], key = 0;

	(void)state;
	for (int round = 0; round < 2; round++) {
		/* salt, n_prompt, the place where a token is another (-1: none), equal hashes with the first */
		static const struct { uint64_t salt; uint32_t n; int other; int same; } cases[] = {
			{ 5, 40, -1, 3 }, { 5, 40, -1, 3 }, { 5, 48, -1, 2 }, { 5, 32, -1, 2 }, { 5, 40, 39, 2 },
			{ 5, 40, 20, 1 }, { 5, 40, 0, 0 }, { 6, 40, -1, 0 }, { 5, 16, -1, 1 }, { 5, 1, -1, 0 },
		};

		start(false);
		assert_int_not_equal(rec.key, key);
		key = rec.key;
		for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
			int32_t prompt[64];
			const struct record_entry *e;
			uint64_t id;
			int same = 0;

			memcpy(prompt, ids, sizeof(prompt));
			if (cases[i].other >= 0)
				prompt[cases[i].other] += 1000;
			id = record_request(&rec, 2000 + i, cases[i].salt, prompt, cases[i].n, 9);
			e = tape_next(&tape);
			assert_non_null(e);
			assert_true(e->kind == RECORD_REQUEST && e->id == id && e->at_ns == 2000 + i && e->n == i);
			assert_true(e->n_prompt == cases[i].n && e->n_tokens == 9 && e->n_ids == 0);
			assert_int_equal(e->n_hashes, (cases[i].n + 15) / 16);
			if (i == 0 && round == 1)
				assert_int_not_equal(hashes(e)[0], first[0]);   /* another recording has another key */
			if (i == 0)
				memcpy(first, hashes(e), sizeof(first));
			while (same < 3 && same < (int)e->n_hashes && hashes(e)[same] == first[same])
				same++;
			if (same != cases[i].same)
				fail_msg("case %zu: %d the same, not %d", i, same, cases[i].same);
		}
		assert_null(tape_next(&tape));
		end(NULL);
	}
}

static void test_ids(void **state)
{
	static const struct { uint32_t n; bool texts, hashes, ids; } cases[] = {
		{ 1, true, true, true }, { 17, true, true, true }, { 100001, true, true, true },
		{ 100001, false, true, false }, { LONG, true, true, false }, { LONG, false, true, false },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct record_entry *e;
		const int32_t *got;

		start(cases[i].texts);
		record_request(&rec, 1, 0, ids, cases[i].n, 1);
		e = tape_next(&tape);
		assert_non_null(e);
		assert_int_equal(e->n_hashes, cases[i].hashes ? (cases[i].n + 15) / 16 : 0);
		assert_int_equal(e->n_ids, cases[i].ids ? cases[i].n : 0);
		got = (const void *)(hashes(e) + e->n_hashes);
		assert_memory_equal(got, ids, e->n_ids * sizeof(*ids));
		end(NULL);
	}
}

/* A reader that sleeps through a round has lost exactly what the numbers say, and goes on. */
static void test_lost(void **state)
{
	const struct record_entry *e;
	uint64_t id = 0, n = 0;

	(void)state;
	start(false);
	record_request(&rec, 1, 0, ids, 16, 1);
	assert_non_null(tape_next(&tape));
	while (rec.page->put < 2 * RECORD_ROOM + 12345)
		id = record_request(&rec, 1, 0, ids, 16 * (1 + (uint32_t)(n++ % 50)), 1);
	assert_null(tape_next(&tape));                                 /* from here on */
	assert_int_equal(tape.lost, n);
	record_end(&rec, id, 77, 3, 1);
	e = tape_next(&tape);
	assert_non_null(e);
	assert_true(e->kind == RECORD_ANSWER && e->id == id && e->at_ns == 77 && e->n_tokens == 3);
	assert_int_equal(tape.lost, n);
	assert_null(tape_next(&tape));
}

static volatile bool writing;

static void *write_much(void *arg)
{
	(void)arg;
	for (uint64_t i = 0; i < 60000; i++) {
		uint32_t n = (uint32_t)(i * 7919 % 3000) + 1;
		uint64_t id = record_request(&rec, i, 0, ids + n, n, n);

		record_end(&rec, id, i, n, 1);
	}
	writing = false;
	return NULL;
}

/* An entry read while the writer goes on is whole: its ids match its length. */
static void test_torn(void **state)
{
	uint64_t read = 0, next = 0;
	pthread_t thread;

	(void)state;
	start(true);
	writing = true;
	assert_int_equal(pthread_create(&thread, NULL, write_much, NULL), 0);
	while (writing) {
		const struct record_entry *e = tape_next(&tape);

		if (!e)
			continue;
		assert_true(e->n >= next);
		next = e->n + 1;
		read++;
		assert_true(e->kind == RECORD_REQUEST || e->kind == RECORD_ANSWER);
		if (e->kind == RECORD_ANSWER)
			continue;
		assert_int_equal(e->n_ids, e->n_prompt);
		assert_memory_equal(hashes(e) + e->n_hashes, ids + e->n_prompt, e->n_prompt * sizeof(*ids));
	}
	pthread_join(thread, NULL);
	record_end(&rec, 1, 1, 1, 1);          /* a loss shows with the next entry */
	while (tape_next(&tape))
		read++;
	assert_int_equal(tape.lost + read, 120001);
}

/* ---- the trace --------------------------------------------------------------------------------- */

struct world { FILE *f; char *text; size_t size; struct trace *trace; };

static void open_trace(struct world *w, bool texts, struct trace_limits limits)
{
	w->f = open_memstream(&w->text, &w->size);
	assert_int_equal(trace_create(&w->trace, w->f, texts ? (void *)w : NULL, 1000, &limits), 0);
}

static int feed(struct world *w)
{
	const struct record_entry *e;
	int rc = 0;

	while (!rc && (e = tape_next(&tape)))
		rc = trace_take(w->trace, e);
	return rc;
}

static void expect(struct world *w, const char *want, struct trace_count *c)
{
	assert_int_equal(trace_finish(w->trace, c), 0);
	fclose(w->f);
	assert_string_equal(w->text, want);
	free(w->text);
	trace_free(w->trace);
}

static void test_trace(void **state)
{
	struct trace_count c;
	struct world w;
	uint64_t a, b, d, x;

	(void)state;
	start(false);
	open_trace(&w, false, (struct trace_limits){ 100, 1 << 20 });
	record_end(&rec, 12345, 1, 2, 1);                              /* one that began before */
	a = record_request(&rec, 1000000000, 1, ids, 40, 100);
	b = record_request(&rec, 1500000000, 1, ids, 33, 100);
	x = record_request(&rec, 1600000000, 1, ids, 33, 100);
	d = record_request(&rec, 1750000000, 2, ids, 16, 100);
	record_request(&rec, 1760000000, 2, ids, 16, 100);             /* never ends */
	record_end(&rec, b, 1, 7, 1);
	assert_int_equal(feed(&w), 0);
	fflush(w.f);
	assert_int_equal(w.size, 0);                                   /* in the order of arrival */
	record_end(&rec, a, 1, 5, 2);
	record_end(&rec, d, 1, 1, -ECANCELED);
	record_end(&rec, x, 1, 0, -ECANCELED);
	assert_int_equal(feed(&w), 0);
	expect(&w, "{\"timestamp\": 0.000000, \"input_length\": 40, \"output_length\": 5, \"hash_ids\": [0, 1, 2]}\n"
	           "{\"timestamp\": 0.500000, \"input_length\": 33, \"output_length\": 7, \"hash_ids\": [0, 1, 3]}\n"
	           "{\"timestamp\": 0.750000, \"input_length\": 16, \"output_length\": 1, \"hash_ids\": [4]}\n", &c);
	assert_true(c.requests == 3 && c.open == 1 && c.empty == 1 && c.no_prompt == 0);
	assert_true(c.chunks == 7 && c.repeated == 2 && c.prompt == 89 && c.generated == 13);
	assert_true(c.seconds > 0.7499 && c.seconds < 0.7501);
}

static void test_texts(void **state)
{
	struct trace_count c;
	struct world w;

	(void)state;
	start(true);
	open_trace(&w, true, (struct trace_limits){ 100, 1 << 20 });
	record_end(&rec, record_request(&rec, 1000, 1, ids, 3, 100), 1, 5, 2);
	record_end(&rec, record_request(&rec, 1000, 1, ids, LONG, 100), 1, 5, 2);
	assert_int_equal(feed(&w), 0);
	expect(&w, "{\"timestamp\": 0.000000, \"input_length\": 3, \"output_length\": 5, \"hash_ids\": [0], "
	           "\"prompt\": \"abc\", \"output_tokens\": 5}\n", &c);
	assert_int_equal(c.no_prompt, 1);
}

static void test_bounds(void **state)
{
	static const struct { struct trace_limits limits; unsigned long least, most; } cases[] = {
		{ { 7, 1 << 20 }, 7, 7 }, { { 1000, 500 }, 5, 8 }, { { 1, 1 }, 1, 1 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct trace_count c;
		struct world w;
		int rc = 0;

		start(false);
		open_trace(&w, false, cases[i].limits);
		for (int k = 0; k < 300; k++) {
			record_end(&rec, record_request(&rec, 1000, 1, ids, 16, 100), 1, 5, 2);
			rc = feed(&w);
		}
		assert_int_equal(rc, 1);
		assert_int_equal(trace_finish(w.trace, &c), 0);
		if (c.requests < cases[i].least || c.requests > cases[i].most)
			fail_msg("case %zu: %lu lines", i, (unsigned long)c.requests);
		fclose(w.f);
		free(w.text);
		trace_free(w.trace);
		end(NULL);
	}
}

/* Many hashes: each keeps its number. */
static void test_numbers(void **state)
{
	struct trace_count c;
	struct world w;
	char *line, want[32];
	int n = 0;

	(void)state;
	start(false);
	open_trace(&w, false, (struct trace_limits){ 100000, 1 << 30 });
	for (int round = 0; round < 2; round++)
		for (int i = 0; i < 20000; i++) {
			record_end(&rec, record_request(&rec, 1000, (uint64_t)i, ids, 16, 1), 1, 5, 2);
			assert_int_equal(feed(&w), 0);
		}
	assert_int_equal(trace_finish(w.trace, &c), 0);
	fclose(w.f);
	for (line = strtok(w.text, "\n"); line; line = strtok(NULL, "\n"), n++) {
		snprintf(want, sizeof(want), "\"hash_ids\": [%d]}", n % 20000);
		assert_non_null(strstr(line, want));
	}
	assert_int_equal(n, 40000);
	assert_int_equal(c.repeated, 20000);
	free(w.text);
	trace_free(w.trace);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fails), cmocka_unit_test_teardown(test_sealed, end),
		cmocka_unit_test(test_not_ours), cmocka_unit_test(test_hashes), cmocka_unit_test(test_ids),
		cmocka_unit_test_teardown(test_lost, end), cmocka_unit_test_teardown(test_torn, end),
		cmocka_unit_test_teardown(test_trace, end), cmocka_unit_test_teardown(test_texts, end),
		cmocka_unit_test(test_bounds), cmocka_unit_test_teardown(test_numbers, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
