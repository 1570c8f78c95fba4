/* LINK: adapters/http/json/member.c */
/* test_member.c - the member that chooses a model, found in a request that nobody has parsed yet. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/http/json/member.h"

static void rows(void **state)
{
	static const struct { const char *text, *is; } row[] = {
		{ "{\"model\":\"a\"}", "a" }, { " {\n\"x\" : [1, {\"model\":\"no\"}], \"model\" :\t\"b/c\" , \"y\":0}", "b/c" },
		{ "{\"prompt\":\"say \\\"model\\\":\\\"x\\\" }\",\"model\":\"c\"}", "c" },
		{ "{\"model\":\"d\"", "d" },              /* the rest is checked by the parser */
		{ "{\"model\":\"a\",\"model\":\"b\"}", "a" }, { "{\"a\":{},\"b\":[],\"c\":null,\"d\":-1e3,\"model\":\"e\"}", "e" },
		{ "{}", NULL }, { "", NULL }, { "[\"model\"]", NULL }, { "{\"model\":1}", NULL }, { "{\"model\":null}", NULL },
		{ "{\"mod\":\"el\"}", NULL }, { "{\"model\"", NULL }, { "{\"model\":", NULL }, { "{\"model\":\"", NULL },
		{ "{\"model\":\"a\\u0062\"}", NULL }, { "{\"x\":{\"model\":\"a\"}}", NULL }, { "{\"x\":]\"model\":\"a\"}", NULL },
		{ "{\"x\":1 \"model\":\"a\"}", NULL }, { "{\"model\":\"123456789012345\"}", "123456789012345" },
		{ "{\"model\":\"1234567890123456\"}", NULL }, { "{x:1,\"model\":\"a\"}", NULL },
	};
	char out[16];

	(void)state;
	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		size_t n = strlen(row[i].text);
		char *exact = malloc(n + 1);          /* so that a read behind the end is seen */

		memcpy(exact, row[i].text, n);
		for (size_t cut = 0; cut < n; cut++)
			member_text(exact, cut, "model", out, sizeof(out));
		if (member_text(exact, n, "model", out, sizeof(out)) != (row[i].is != NULL))
			fail_msg("%s", row[i].text);
		if (row[i].is)
			assert_string_equal(out, row[i].is);
		free(exact);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(rows) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
