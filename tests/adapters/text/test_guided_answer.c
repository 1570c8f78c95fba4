/* LINK: adapters/text/guide/guided.c */
/* test_guided_answer.c - the guides of one answer: which records go to the daemon, and when.  The grammar is a script. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/text/slipring-text.h"

#define EOS 7

/* ---- a scripted grammar: what comes next depends only on how many tokens were taken ---- */

struct step { uint32_t at, kind, n; int32_t id[16]; bool done; int error; };
struct sr_guide { uint32_t at; };

#define BITS(a)         { .at = a, .kind = SR_GUIDE_BITS }
#define ONLY(a, k, ...) { .at = a, .kind = SR_GUIDE_ONLY, .n = k, .id = { __VA_ARGS__ } }
#define FREE(a, k, ...) { .at = a, .kind = SR_GUIDE_FREE, .n = k, .id = { __VA_ARGS__ } }
#define IS(a, k, ...)   { .at = a, .kind = SR_GUIDE_IS, .n = k, .id = { __VA_ARGS__ } }
#define END(a, kind_, k, ...) { .at = a, .kind = kind_, .n = k, .id = { __VA_ARGS__ }, .done = true }

static const struct step *script;
static int n_open;
static const struct sr_text_info info = { .vocab = 64, .eos = EOS, .stop = { EOS }, .n_stop = 1 };

const struct sr_text_info *sr_text_info(const struct sr_text *t) { (void)t; return &info; }

int sr_guide_open(struct sr_guide **out, struct sr_grammar *g)
{
	(void)g;
	*out = calloc(1, sizeof(**out));
	n_open++;
	return 0;
}

void sr_guide_close(struct sr_guide *u)
{
	n_open -= u != NULL;
	free(u);
}

int sr_guide_take(struct sr_guide *u, int32_t id)
{
	if (id == 63)
		return -EINVAL;
	u->at++;
	return 0;
}

int sr_guide_next(struct sr_guide *u, struct sr_next *out, uint32_t *bits)
{
	const struct step *s = script;

	while (s->at != u->at)
		s++;
	*out = (struct sr_next){ .kind = s->kind, .n = s->n, .done = s->done };
	memcpy(out->id, s->id, sizeof(s->id));
	if (s->kind == SR_GUIDE_BITS)
		bits[0] = 0xf0;
	return s->error;
}

/* ---- what is put ---- */

static char log_[1024];
static int fails;

static int put(void *ctx, uint32_t index, uint32_t kind, const int32_t *ids, uint32_t n, const uint32_t *bits)
{
	static const char *const name[] = { "bits", "only", "is", "free" };
	size_t at = strlen(log_);

	(void)ctx;
	at += (size_t)snprintf(log_ + at, sizeof(log_) - at, "%u:%s", index, name[kind]);
	if (kind == SR_GUIDE_BITS)
		at += (size_t)snprintf(log_ + at, sizeof(log_) - at, "=%x", bits[0]);
	for (uint32_t i = 0; i < n; i++)
		at += (size_t)snprintf(log_ + at, sizeof(log_) - at, ",%d", ids[i]);
	snprintf(log_ + at, sizeof(log_) - at, " ");
	return fails;
}

static uint32_t scratch[2];

static void said(const char *want)
{
	assert_string_equal(log_, want);
	log_[0] = 0;
}

static struct sr_grammar *const any = (struct sr_grammar *)scratch;

static struct sr_guided *begin_with(const struct step *s, uint32_t min_tokens, int32_t stop, const struct sr_thought *t)
{
	struct sr_guided *d;

	script = s;
	log_[0] = 0;
	assert_int_equal(sr_guided_open(&d, s ? any : NULL, NULL, min_tokens, &stop, stop >= 0, t), 0);
	assert_int_equal(sr_guided_begin(d, scratch, put, NULL), 0);
	return d;
}

static struct sr_guided *begin(const struct step *s, uint32_t min_tokens, int32_t stop)
{
	return begin_with(s, min_tokens, stop, NULL);
}

static void each_token(void **state)
{
	static const struct step s[] = { BITS(0), ONLY(1, 2, 1, EOS), FREE(2, 0, 0), END(3, SR_GUIDE_ONLY, 2, EOS, 9) };
	struct sr_guided *d = begin(s, 0, -1);

	(void)state;
	said("0:bits=f0 ");
	assert_int_equal(sr_guided_take(d, 4, scratch, put, NULL), 0);
	said("1:only,1,7 ");
	assert_int_equal(sr_guided_take(d, 1, scratch, put, NULL), 0);
	said("2:free ");
	assert_int_equal(sr_guided_take(d, 1, scratch, put, NULL), 0);
	said("3:is,7 ");                               /* the end is forced, whatever id it may have */
	sr_guided_close(d);
	assert_int_equal(n_open, 0);
}

/* Forced tokens go ahead with the guide behind them; in records of 12; then nothing until they have come. */
static void forced(void **state)
{
	static const struct step s[] = { IS(0, 14, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13), BITS(14),
		END(15, SR_GUIDE_IS, 1, EOS) };
	struct sr_guided *d = begin(s, 0, -1);

	(void)state;
	said("0:is,0,1,2,3,4,5,6,7,8,9,10,11 12:is,12,13 14:bits=f0 ");
	for (int i = 0; i < 14; i++)
		assert_int_equal(sr_guided_take(d, i, scratch, put, NULL), 0);
	said("");
	assert_int_equal(sr_guided_take(d, 5, scratch, put, NULL), 0);
	said("15:is,7 ");
	assert_int_equal(sr_guided_take(d, EOS, scratch, put, NULL), 0);
	said("");
	sr_guided_close(d);
	d = begin(s, 0, -1);
	assert_int_equal(sr_guided_take(d, 1, scratch, put, NULL), -EINVAL); /* 0 was forced */
	sr_guided_close(d);
}

/* Free until an id: no guide before it has come, then the one of the token behind it. */
static void free_until(void **state)
{
	static const struct step s[] = { FREE(0, 2, 20, 21), BITS(3) };
	struct sr_guided *d = begin(s, 0, -1);

	(void)state;
	said("0:free,20,21 ");
	assert_int_equal(sr_guided_take(d, 1, scratch, put, NULL), 0);
	assert_int_equal(sr_guided_take(d, 2, scratch, put, NULL), 0);
	said("");
	assert_int_equal(sr_guided_take(d, 21, scratch, put, NULL), 0);
	said("3:bits=f0 ");
	sr_guided_close(d);
}

/* While the answer is too short no stop id is allowed, unless nothing else is. */
static void min_tokens(void **state)
{
	static const struct step s[] = { BITS(0), ONLY(1, 3, 4, EOS, 6), ONLY(2, 2, EOS, 6), BITS(3) };
	struct sr_guided *d = begin(s, 3, 6);

	(void)state;
	said("0:bits=30 ");
	sr_guided_take(d, 4, scratch, put, NULL);
	said("1:only,4 ");
	sr_guided_take(d, 4, scratch, put, NULL);
	said("2:only,7,6 ");
	sr_guided_take(d, 4, scratch, put, NULL);
	said("3:bits=f0 ");
	sr_guided_close(d);
}

/* Submitted again at any token: what has been given and not come yet, then all as if nothing had happened. */
static void goes_on(void **state)
{
	static const struct step s[] = { IS(0, 14, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13), BITS(14),
		FREE(15, 1, 9), ONLY(17, 2, 3, 4), END(18, SR_GUIDE_IS, 1, EOS) };
	struct sr_guided *d = begin(s, 0, -1);

	(void)state;
	for (int i = 0; i < 3; i++)
		assert_int_equal(sr_guided_take(d, i, scratch, put, NULL), 0);
	log_[0] = 0;
	assert_int_equal(sr_guided_begin(d, scratch, put, NULL), 0);
	said("3:is,3,4,5,6,7,8,9,10,11,12,13 14:bits=f0 ");
	for (int i = 3; i < 14; i++)
		assert_int_equal(sr_guided_take(d, i, scratch, put, NULL), 0);
	assert_int_equal(sr_guided_begin(d, scratch, put, NULL), 0);
	said("14:bits=f0 ");
	assert_int_equal(sr_guided_take(d, 4, scratch, put, NULL), 0);
	assert_int_equal(sr_guided_take(d, 5, scratch, put, NULL), 0);
	log_[0] = 0;
	assert_int_equal(sr_guided_begin(d, scratch, put, NULL), 0);
	said("16:free,9 ");
	assert_int_equal(sr_guided_take(d, 9, scratch, put, NULL), 0);
	assert_int_equal(sr_guided_begin(d, scratch, put, NULL), 0);
	said("17:only,3,4 17:only,3,4 ");
	assert_int_equal(sr_guided_take(d, 3, scratch, put, NULL), 0);
	assert_int_equal(sr_guided_begin(d, scratch, put, NULL), 0);
	said("18:is,7 18:is,7 ");
	sr_guided_close(d);
	assert_int_equal(n_open, 0);
}

/* Submitted again: all from the start.  Errors of the grammar and of the ring reach the caller. */
static void again_and_errors(void **state)
{
	static const struct step s[] = { IS(0, 2, 1, 2), BITS(2), { .at = 3, .error = -E2BIG } };
	struct sr_guided *d = begin(s, 0, -1);

	(void)state;
	said("0:is,1,2 2:bits=f0 ");
	assert_int_equal(sr_guided_begin(d, scratch, put, NULL), 0);
	said("0:is,1,2 2:bits=f0 ");
	assert_int_equal(n_open, 1);
	sr_guided_take(d, 1, scratch, put, NULL);
	sr_guided_take(d, 2, scratch, put, NULL);
	assert_int_equal(sr_guided_take(d, 63, scratch, put, NULL), -EINVAL);
	assert_int_equal(sr_guided_take(d, 5, scratch, put, NULL), -E2BIG);
	sr_guided_close(d);
	fails = -ECONNRESET;
	script = s;
	sr_guided_open(&d, any, NULL, 0, NULL, 0, NULL);
	assert_int_equal(sr_guided_begin(d, scratch, put, NULL), -ECONNRESET);
	fails = 0;
	sr_guided_close(d);
}

/* ---- thoughts: token 30 opens one, 31 and 32 end it ---- */

static const struct sr_thought closed = { .begin = 30, .n_end = 2, .end = { 31, 32 }, .most = -1 };

static void takes(struct sr_guided *d, int32_t id) { assert_int_equal(sr_guided_take(d, id, scratch, put, NULL), 0); }

static void opened_by_prompt(void **state)
{
	static const struct step s[] = { BITS(0), ONLY(1, 1, 5) };
	struct sr_thought t = closed;
	struct sr_guided *d;

	(void)state;
	t.opened = true;
	d = begin_with(s, 0, -1, &t);
	said("0:free,31,32 ");
	takes(d, 30);                                  /* the grammar sees no token of the thought */
	takes(d, 5);
	said("");
	takes(d, 32);
	said("3:bits=f0 ");
	takes(d, 4);
	said("4:only,5 ");
	sr_guided_close(d);
}

/* Whatever the grammar begins with, token 0 may open a thought; or it is the grammar's first. */
static void may_begin(void **state)
{
	static const struct step bits[] = { BITS(0), BITS(1) }, only[] = { ONLY(0, 2, 1, 2) }, is[] = { IS(0, 3, 1, 2, 3),
		IS(1, 2, 2, 3), BITS(3) }, until[] = { FREE(0, 1, 9) }, full[] = { ONLY(0, 12, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11) };
	struct sr_guided *d;

	(void)state;
	d = begin_with(bits, 0, -1, &closed);
	said("0:bits=400000f0 ");
	takes(d, 30);
	said("1:free,31,32 ");
	takes(d, 31);
	said("2:bits=f0 ");
	takes(d, 4);
	said("3:bits=f0 ");
	sr_guided_close(d);
	d = begin_with(is, 0, -1, &closed);
	said("0:only,1,30 ");
	takes(d, 1);
	said("1:is,2,3 3:bits=f0 ");
	sr_guided_close(d);
	d = begin_with(is, 0, -1, &closed);
	log_[0] = 0;
	takes(d, 30);
	takes(d, 31);
	said("1:free,31,32 2:is,1,2,3 5:bits=f0 ");
	assert_int_equal(sr_guided_begin(d, scratch, put, NULL), 0);
	said("2:is,1,2,3 5:bits=f0 ");                 /* submitted again */
	sr_guided_close(d);
	d = begin_with(only, 0, -1, &closed);
	said("0:only,1,2,30 ");
	sr_guided_close(d);
	d = begin_with(until, 0, -1, &closed);
	said("0:free ");
	sr_guided_close(d);
	d = begin_with(full, 0, -1, &closed);
	said("0:bits=40000fff ");
	sr_guided_close(d);
}

/* A counted thought: a guide for each token, then its end is forced, unless it has come by itself. */
static void budget(void **state)
{
	static const struct step s[] = { BITS(0), BITS(1) };
	struct sr_thought t = closed;
	struct sr_guided *d;

	(void)state;
	t.most = 2;
	d = begin_with(s, 0, -1, &t);
	said("0:bits=400000f0 ");
	takes(d, 30);
	said("1:free ");
	takes(d, 9);
	said("2:free ");
	takes(d, 9);
	said("3:is,31 4:bits=f0 ");
	assert_int_equal(sr_guided_take(d, 9, scratch, put, NULL), -EINVAL);
	takes(d, 31);
	takes(d, 4);
	said("5:bits=f0 ");
	sr_guided_close(d);
	t.opened = true;
	d = begin_with(s, 0, -1, &t);
	takes(d, 32);
	said("0:free 1:bits=f0 ");
	sr_guided_close(d);
	t.most = 0;
	d = begin_with(s, 0, -1, &t);
	said("0:is,31 1:bits=f0 ");
	sr_guided_close(d);
}

/* Without a grammar all is free behind the thought; stop ids are kept out while the answer is too short. */
static void free_answer(void **state)
{
	struct sr_thought t = closed;
	struct sr_guided *d;

	(void)state;
	t.most = 1;
	d = begin_with(NULL, 0, -1, &t);
	takes(d, 30);
	takes(d, 9);
	said("0:free 1:free 2:is,31 3:free,7 ");
	takes(d, 31);
	takes(d, 9);
	takes(d, 9);
	said("");
	sr_guided_close(d);
	d = begin_with(NULL, 2, 6, &t);
	takes(d, 9);
	takes(d, 9);
	said("0:bits=ffffff3f 1:bits=ffffff3f 2:free,7 ");
	sr_guided_close(d);
	assert_int_equal(n_open, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_token), cmocka_unit_test(forced), cmocka_unit_test(free_until),
		cmocka_unit_test(min_tokens), cmocka_unit_test(goes_on), cmocka_unit_test(again_and_errors),
		cmocka_unit_test(opened_by_prompt), cmocka_unit_test(may_begin), cmocka_unit_test(budget),
		cmocka_unit_test(free_answer),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
