/* LINK: */
/* test_wire_doc.c - the tables of docs/wire.md against the structs of shmring/wire.h: each field, in order, at
 * its offset, and none left out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "shmring/wire.h"

#define DOC  "docs/wire.md"
#define COLS 8

struct field { const char *name; size_t at, size; };
struct layout { const char *what; const struct field *field; size_t begin, end; };

#define F(s, name) { #name, offsetof(struct s, name), sizeof(((struct s *)NULL)->name) }
#define AS(shown, s, name) { shown, offsetof(struct s, name), sizeof(((struct s *)NULL)->name) }
#define NONE { NULL, 0, 0 }

/* A name with a blank is what the table says instead of a name. */
static const struct field hello[] = { F(sr_hello, magic), F(sr_hello, version), F(sr_hello, want.live),
	F(sr_hello, want.tokens), F(sr_hello, want.arena), F(sr_hello, want.guides), F(sr_hello, want.vectors),
	F(sr_hello, zero), F(sr_hello, name), NONE };
static const struct field welcome[] = { F(sr_welcome, magic), F(sr_welcome, version), F(sr_welcome, status),
	F(sr_welcome, shape.live), F(sr_welcome, shape.tokens), F(sr_welcome, shape.arena),
	F(sr_welcome, shape.guides), F(sr_welcome, shape.vectors), F(sr_welcome, epoch), NONE };
#define Q(name) F(sr_wire_request, name)
static const struct field request[] = { Q(seq), Q(flags), Q(user_data), Q(at), Q(max_tokens), Q(deadline),
	Q(priority), Q(n_top), Q(n_prompt_top), Q(pool), Q(unit), Q(width), Q(place),
	AS("2 bytes", sr_wire_request, zero0), Q(cache_salt), Q(tenant), Q(span), Q(sampling), Q(trace_id),
	Q(span_id), Q(n_answer), Q(second), Q(name), AS("48 bytes", sr_wire_request, zero), NONE };
#define S(name) AS(#name, sr_wire_request, sampling.name)
static const struct field sampling[] = { S(seed), S(temperature), S(top_p), S(min_p), S(top_k), S(presence),
	S(frequency), S(repetition), S(min_position), NONE };
#define G(name) F(sr_wire_guide, name)
static const struct field guide[] = { G(seq), G(ticket), G(index), G(kind), G(n), G(place), G(id), NONE };
#define R(shown, name) AS(shown, sr_record, name)
static const struct field any_record[] = { R("seq", seq), R("kind", kind), R("user_data", user_data), NONE };
static const struct field token[] = { R("n_top", n_top), R("last", last), R("id", u.token.id),
	R("index", u.token.index), R("logprob", u.token.logprob), R("rank", u.token.rank), R("top", u.token.top),
	NONE };
static const struct field top[] = { R("n_top", n_top), R("top", u.top), NONE };
static const struct field end[] = { R("was", was), R("preempted", preempted), R("place", place),
	R("finish", u.end.finish), R("n_tokens", u.end.n_tokens), R("computed", u.end.computed),
	R("cached", u.end.cached), R("queued", u.end.queued), R("scheduled", u.end.scheduled),
	R("first", u.end.first), R("last", u.end.last), NONE };
static const struct field up[] = { F(sr_up, requests.room_at), F(sr_up, cancels.room_at), F(sr_up, tokens.head),
	F(sr_up, tokens.wake_at), F(sr_up, doing), F(sr_up, guides.room_at), NONE };
static const struct field down[] = { F(sr_down, requests.head), F(sr_down, requests.wake_at),
	F(sr_down, cancels.head), F(sr_down, cancels.wake_at), F(sr_down, tokens.room_at), F(sr_down, pong),
	F(sr_down, epoch), F(sr_down, model), F(sr_down, guides.head), F(sr_down, guides.wake_at), NONE };
#define M(name) F(sr_model_info, name)
static const struct field model[] = { M(name), M(vocab_hash), M(epoch), M(vocab), M(context), M(live), M(tokens),
	M(arena), M(flags), M(guides), M(vectors), M(width), M(answers), M(sampling), M(max_tokens),
	AS("4 zero bytes", sr_model_info, padding), NONE };

/* ---- the page -------------------------------------------------------------------------------- */

static char *page;

static int read_page(void **state)
{
	FILE *f = fopen(DOC, "r");
	size_t n;

	(void)state;
	assert_non_null(f);
	page = calloc(1, 1 << 20);
	n = fread(page, 1, (1 << 20) - 1, f);
	fclose(f);
	return n > 0 ? 0 : -1;
}

static int free_page(void **state)
{
	(void)state;
	free(page);
	return 0;
}

/* The cells of a row, without their blanks.  Returns how many. */
static int cells_of(char *row, char *cell[COLS])
{
	int n = 0;

	for (char *at = strchr(row, '|'); at && n < COLS;) {
		char *next = strchr(++at, '|'), *last;

		if (!next)
			break;
		*next = '\0';
		while (*at == ' ')
			at++;
		for (last = next; last > at && last[-1] == ' ';)
			*--last = '\0';
		cell[n++] = at;
		at = next;
	}
	return n;
}

/* The next name of a cell, as `name` or "4 bytes", without the size of an array.  false: no more. */
static bool next_name(char **at, char *out, size_t n)
{
	char *begin = *at, *close;

	if (*begin >= '0' && *begin <= '9') {
		snprintf(out, n, "%s", begin);
		*at = begin + strlen(begin);
		return true;
	}
	begin = strchr(begin, '`');
	close = begin ? strchr(begin + 1, '`') : NULL;
	if (!close)
		return false;
	*close = '\0';
	snprintf(out, n, "%s", begin + 1);
	*at = close + 1;
	if (strchr(out, '['))
		*strchr(out, '[') = '\0';
	return true;
}

/* ".live" is short for "want.live". */
static bool same_name(const char *said, const char *is)
{
	const char *dot = strchr(is, '.');

	return !strcmp(said, is) || (*said == '.' && dot && !strcmp(said, dot));
}

/* A table whose first row begins with `head`: offsets in one column, the fields' names in another. */
static void compare(const char *from, const char *head, int at_col, int name_col, const struct field *f)
{
	const char *row = strstr(from, head);
	char copy[2048], *cell[COLS], name[64];

	if (!row)
		fail_msg(DOC ": no table \"%s\"", head);
	row = strchr(strchr(row, '\n') + 1, '\n') + 1;
	for (; *row == '|'; row = strchr(row, '\n') + 1) {
		char *offset, *names;
		bool first = true;

		snprintf(copy, sizeof(copy), "%.*s", (int)strcspn(row, "\n"), row);
		assert_true(cells_of(copy, cell) > name_col);
		offset = cell[at_col];
		names = cell[name_col];
		for (; next_name(&names, name, sizeof(name)); first = false) {
			if (!f->name || !same_name(name, f->name))
				fail_msg(DOC ", \"%s\": `%s` where there is `%s`", head, name, f->name ? f->name : "nothing");
			if (first && (*offset < '0' || *offset > '9'))
				fail_msg(DOC ", \"%s\": `%s` has no offset", head, name);
			if (*offset >= '0' && *offset <= '9' && strtoul(offset, &offset, 10) != f->at)
				fail_msg(DOC ", \"%s\": `%s` is at %zu", head, name, f->at);
			offset += strspn(offset, ", ");
			f++;
		}
	}
	if (f->name)
		fail_msg(DOC ", \"%s\": nothing about `%s` at %zu", head, f->name, f->at);
}

/* ---- cases ----------------------------------------------------------------------------------- */

/* The lists above name every byte, so a new field cannot be left out of both. */
static void no_byte_is_left_out(void **state)
{
	const struct layout t[] = {
		{ "hello", hello, 0, sizeof(struct sr_hello) }, { "welcome", welcome, 0, sizeof(struct sr_welcome) },
		{ "request", request, 0, sizeof(struct sr_wire_request) },
		{ "sampling", sampling, 128, 128 + sizeof(struct sr_sampling) },
		{ "guide", guide, 0, sizeof(struct sr_wire_guide) }, { "model", model, 0, sizeof(struct sr_model_info) },
		{ "token", token + 2, 16, 64 }, { "top", top + 1, 16, 64 }, { "end", end + 3, 16, 64 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		size_t at = t[i].begin;

		for (const struct field *f = t[i].field; f->name; at += f++->size)
			if (f->at != at)
				fail_msg("%s: %s is at %zu, behind byte %zu", t[i].what, f->name, f->at, at);
		if (at != t[i].end)
			fail_msg("%s: %zu of %zu bytes are listed", t[i].what, at, t[i].end);
	}
}

static void each_table(void **state)
{
	char head[128];

	(void)state;
	compare(page, "| bytes | hello |", 0, 1, hello);
	compare(page, "| bytes | welcome |", 0, 1, welcome);
	compare(page, "| `sampling`, at | field |", 0, 1, sampling);
	snprintf(head, sizeof(head), "| at | all | TOKEN (%d), PROMPT (%d) | TOP (%d) | END (%d) |", SR_TOKEN, SR_PROMPT,
	         SR_TOP, SR_END);
	compare(page, head, 0, 1, any_record);
	compare(page, head, 0, 2, token);
	compare(page, head, 0, 3, top);
	compare(page, head, 0, 4, end);
}

/* Two tables have the same head, so they are looked for behind their titles. */
static void tables_of_records(void **state)
{
	static const struct { const char *title; size_t bytes; const struct field *f; } t[] = {
		{ "## A request, %zu bytes", sizeof(struct sr_wire_request), request },
		{ "## A guide, %zu bytes", sizeof(struct sr_wire_guide), guide },
	};
	const char *from;
	char title[64];

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		snprintf(title, sizeof(title), "%.*s%zu bytes\n", (int)strcspn(t[i].title, "%"), t[i].title, t[i].bytes);
		from = strstr(page, title);
		assert_non_null(from);
		compare(from, "| at | field |", 0, 1, t[i].f);
	}
}

/* "requests: `room_at`" is requests.room_at, and "`doing[2]`, 8 bytes each" doing. */
static void words_of_both_sides(void **state)
{
	const struct field *next[2] = { up, down };
	char *row = strstr(page, "| in `up` at | word |"), copy[2048], *cell[COLS], label[64];

	(void)state;
	assert_non_null(row);
	row = strchr(strchr(row, '\n') + 1, '\n') + 1;
	for (; *row == '|'; row = strchr(row, '\n') + 1) {
		snprintf(copy, sizeof(copy), "%.*s", (int)strcspn(row, "\n"), row);
		assert_int_equal(cells_of(copy, cell), 4);
		for (int side = 0; side < 2; side++) {
			const struct field *f = next[side];
			const char *dot = f->name ? strchr(f->name, '.') : NULL;

			if (!*cell[2 * side])
				continue;
			assert_non_null(f->name);
			if (dot)
				snprintf(label, sizeof(label), "%.*s: `%s`", (int)(dot - f->name), f->name, dot + 1);
			else
				snprintf(label, sizeof(label), !strcmp(f->name, "model") ? "`struct sr_model_info`" : "`%s", f->name);
			if (strncmp(cell[2 * side + 1], label, strlen(label)) || strtoul(cell[2 * side], NULL, 10) != f->at)
				fail_msg(DOC ": %s at %s, where %s is at %zu", cell[2 * side + 1], cell[2 * side], f->name, f->at);
			next[side]++;
		}
	}
	assert_true(!next[0]->name && !next[1]->name);
}

/* The fields of the model info stand in one cell, in order. */
static void the_model(void **state)
{
	char *at = strstr(page, "`struct sr_model_info`: "), list[512];
	const struct field *f = model;
	size_t flags;

	(void)state;
	assert_non_null(at);
	at += strlen("`struct sr_model_info`: ");
	snprintf(list, sizeof(list), "%.*s", (int)strcspn(at, "|"), at);
	for (char *save, *word = strtok_r(list, ",", &save); word; word = strtok_r(NULL, ",", &save), f++) {
		word += strspn(word, " ");
		if (!f->name || strncmp(word, f->name, strlen(f->name)))
			if (!f->name || strcmp(f->name, "sampling") || !strstr(word, "`struct sr_sampling`"))
				fail_msg(DOC ": \"%s\" where there is %s", word, f->name ? f->name : "nothing");
	}
	assert_null(f->name);
	at = strstr(page, "`flags` of the model info, 4 bytes at ");
	assert_non_null(at);
	assert_int_equal(sscanf(at, "`flags` of the model info, 4 bytes at %zu", &flags), 1);
	assert_int_equal(flags, offsetof(struct sr_down, model) + offsetof(struct sr_model_info, flags));
}

/* The bits that have a line each are those that there are. */
static void bits(void **state)
{
	unsigned said = 0, bit;
	const char *at = strstr(page, "`flags` of the model info");

	(void)state;
	assert_non_null(at);
	for (at = strstr(at, "\n- Bit "); at && sscanf(at, "\n- Bit %u:", &bit) == 1 && bit < 32; at = strchr(at + 1, '\n'))
		said |= 1u << bit;
	assert_int_equal(said, SR_TENANTS_HEARD | SR_TENANTS_APART | SR_ONLY_POOLED | SR_LABELS);
	assert_non_null(strstr(page, "bits 0–6 of `slipring.h`"));
	assert_int_equal(SR_SEEDED | SR_IGNORE_EOS | SR_PROMPT_LOGPROBS | SR_NO_CACHE | SR_GUIDED | SR_POOLED |
	                 SR_PROGRESS, 0x7f);
	assert_non_null(strstr(page, "guided (16) and pooled (32)"));
	assert_true(SR_GUIDED == 16 && SR_POOLED == 32);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_byte_is_left_out), cmocka_unit_test(each_table), cmocka_unit_test(tables_of_records),
		cmocka_unit_test(words_of_both_sides), cmocka_unit_test(the_model), cmocka_unit_test(bits),
	};

	return cmocka_run_group_tests(tests, read_page, free_page);
}
