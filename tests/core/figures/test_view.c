/* LINK: @figures core/instance/stats.c core/instance/knobs.c core/instance/refuse.c -ljansson -lm */
/* test_view.c - the view that slipring top and the page show, from hand-made stats pages. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "core/figures/judge.h"
#include "core/figures/view.h"
#include "core/instance/knobs.h"
#include "shmring/clock.h"

#define SECOND 1000000000ull

static struct stats_page page;

static void at(uint64_t ns)
{
	page.accounted_ns = ns;
	page.busy_since_ns = 1;               /* it does not sleep: what is counted is all */
}

static int fresh(void **state)
{
	(void)state;
	memset(&page, 0, sizeof(page));
	page.epoch = 11;
	page.ready_ns = SECOND;
	strcpy(page.model, "a \"model\"");
	strcpy(page.state, "ready");
	at(2 * SECOND);
	return 0;
}

static double number_of(const json_t *j, const char *name)
{
	const json_t *v = json_object_get(j, name);

	if (!json_is_number(v))
		fail_msg("%s is no number", name);
	return json_number_value(v);
}

/* The figures are those between two looks; at another daemon they begin anew. */
static void test_between_looks(void **state)
{
	struct view *v = view_create("name");
	json_t *j;

	(void)state;
	assert_non_null(v);
	page.count.generation_tokens = 500;
	view_look(v, &page, true);
	assert_true(v->first && v->f.seconds == 1 && v->f.generated_per_s == 500);
	page.count.generation_tokens = 800;
	page.count.why_ns[WHY_SEQS] = 2 * SECOND;
	page.count.bound_ns[BOUND_MEMORY] = 2 * SECOND;
	page.running = 3;
	at(4 * SECOND);
	view_look(v, &page, true);
	assert_true(!v->first && v->f.generated_per_s == 150 && v->f.why_s[WHY_SEQS] == 2);
	j = view_json(v, 10);
	assert_true(number_of(j, "generated_tokens_per_s") == 150 && number_of(j, "running") == 3);
	assert_true(number_of(json_object_get(j, "why_s"), "seqs") == 2 && number_of(j, "seconds") == 2);
	assert_string_equal(json_string_value(json_object_get(j, "model")), "a \"model\"");
	assert_true(json_is_null(json_object_get(j, "prefix_hit_rate")));
	assert_true(json_is_object(json_object_get(json_object_get(j, "knobs"), "max-num-seqs")));
	json_decref(j);
	page.epoch = 12;
	page.ready_ns = 4 * SECOND;
	page.count.generation_tokens = 10;
	at(5 * SECOND);
	view_look(v, &page, true);
	assert_true(v->first && v->f.seconds == 1 && v->f.generated_per_s == 10);
	page.epoch = 0;                       /* it stopped */
	view_look(v, &page, false);
	assert_true(!v->first && !v->alive);
	view_destroy(v);
}

/* All 4,096 clients: the busiest come first, and no more than asked for. */
static void test_all_clients(void **state)
{
	struct view *v = view_create("name");
	json_t *j, *rows, *row;
	double last = INFINITY;
	size_t i;
	int odd = 0;

	(void)state;
	for (int k = 0; k < STATS_CLIENTS; k++) {
		page.client[k] = (struct stats_client){ .id = (uint64_t)k + 1, .pid = 7, .requests = 4, .alone = 4 };
		snprintf(page.client[k].name, sizeof(page.client[k].name), "c%d\n", k);
	}
	page.clients = STATS_CLIENTS;
	view_look(v, &page, true);
	for (int k = 0; k < STATS_CLIENTS; k++)
		page.client[k].tokens = (uint64_t)(k * 7919 % STATS_CLIENTS);
	page.client[5].full_since_ns = 1;
	at(3 * SECOND);
	view_look(v, &page, true);
	assert_int_equal(v->n_rows, STATS_CLIENTS);
	j = view_json(v, 100);
	rows = json_object_get(j, "client");
	assert_int_equal(json_array_size(rows), 100);
	json_array_foreach(rows, i, row) {
		assert_true(number_of(row, "tokens_per_s") <= last);
		last = number_of(row, "tokens_per_s");
		assert_null(strchr(json_string_value(json_object_get(row, "name")), '\n'));
	}
	assert_true(last >= STATS_CLIENTS - 100);
	for (int k = 0; k < v->n_rows; k++)
		odd += strstr(v->row[k].remark, "does not read") != NULL;
	assert_int_equal(odd, 1);
	json_decref(j);
	j = view_json(v, 0);
	assert_int_equal(json_array_size(json_object_get(j, "client")), 0);
	json_decref(j);
	view_destroy(v);
}

/* A page of a process that lies about the number of its groups is read within bounds. */
static void test_groups(void **state)
{
	struct view *v = view_create("here");
	json_t *j, *groups;

	(void)state;
	page.kv_groups = 2;
	page.group[1] = (struct stats_group){ .used = 7, .window = 512 };
	view_look(v, &page, true);
	j = view_json(v, 0);
	groups = json_object_get(json_object_get(j, "memory"), "kv_group");
	assert_int_equal(json_array_size(groups), 2);
	assert_true(number_of(json_array_get(groups, 0), "window") == 0);
	assert_true(number_of(json_array_get(groups, 1), "window") == 512);
	assert_true(number_of(json_array_get(groups, 1), "blocks_used") == 7);
	json_decref(j);
	page.kv_groups = UINT64_MAX;
	view_look(v, &page, true);
	j = view_json(v, 0);
	assert_int_equal(json_array_size(json_object_get(json_object_get(j, "memory"), "kv_group")), STATS_GROUPS);
	json_decref(j);
	view_destroy(v);
}

/* Every limit has its sentence, for programs, too. */
static void test_advice(void **state)
{
	json_t *j = judge_advice_json();

	(void)state;
	for (int i = WHY_EMPTY + 1; i < N_WHY; i++)
		assert_true(json_string_length(json_object_get(json_object_get(json_object_get(j, "why"),
		            sched_why_name(i)), "turn")) > 0);
	for (int i = 0; i < N_EMPTY; i++)
		assert_true(json_string_length(json_object_get(json_object_get(json_object_get(j, "empty"),
		            stats_empty_name(i)), "what")) > 0);
	for (int i = 0; i < N_BOUND; i++)
		assert_true(json_string_length(json_object_get(json_object_get(json_object_get(j, "bound"),
		            sched_bound_name(i)), "what")) > 0);
	json_decref(j);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test_setup(test_between_looks, fresh),
	                                    cmocka_unit_test_setup(test_all_clients, fresh), cmocka_unit_test_setup(test_groups, fresh),
	                                    cmocka_unit_test(test_advice) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
