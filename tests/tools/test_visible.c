/* LINK: tools/visible.c adapters/text/unicode/utf8.c -lutil */
/* test_visible.c - text cannot control a terminal, in whatever pieces it comes; elsewhere it stays unchanged. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pty.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/visible.h"

#define BAD "\xef\xbf\xbd"

static const struct { const char *raw, *shown; } cases[] = {
	{ "plain text\twith a tab\n", "plain text\twith a tab\n" },
	{ "Grüße, 模型, \xf0\x9f\x98\x80", "Grüße, 模型, \xf0\x9f\x98\x80" },
	{ "\033]0;title\a", "^[]0;title^G" }, { "\033[2Ja\rb\b", "^[[2Ja^Mb^H" }, { "\x7f", "^?" },
	{ "\x01\x0b\x0c\x1f", "^A^K^L^_" }, { "\xc2\x9b" "2J", BAD "2J" },
	{ "\xc2\x80\xc2\x9f\xc2\xa0", BAD BAD "\xc2\xa0" }, { "\x9b" "2J", BAD "2J" }, { "\xff", BAD },
	{ "\xe4\xb8" "a", BAD "a" }, { "\xe4\033[m", BAD "^[[m" }, { "\xf0\x9f\x98\xc2\x9b", BAD BAD },
	{ "\xed\xa0\x80", BAD BAD BAD }, { "\xc0\x9b", BAD BAD },
};
#define N (sizeof(cases) / sizeof(cases[0]))

static void each_cut(void **state)
{
	(void)state;
	for (size_t i = 0; i < N; i++)
		for (size_t a = 0; a <= strlen(cases[i].raw); a++)
			for (size_t b = a; b <= strlen(cases[i].raw); b++) {
				const char *s = cases[i].raw;
				struct visible v = { .n = 0 };
				char out[400];
				size_t n = visible(&v, s, a, out);

				n += visible(&v, s + a, b - a, out + n);
				n += visible(&v, s + b, strlen(s) - b, out + n);
				out[n] = 0;
				assert_int_equal(v.n, 0);
				assert_string_equal(out, cases[i].shown);
			}
}

/* Any bytes, in pieces of one to three: the output has no C0 but tab and line feed, no DEL, no C1, and is UTF-8. */
static void all_bytes(void **state)
{
	uint64_t x = 88172645463325252u;
	struct visible v = { .n = 0 };
	char out[64];

	(void)state;
	for (int i = 0; i < 300000; i++) {
		char c[3];
		size_t n;

		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		memcpy(c, &x, sizeof(c));
		n = visible(&v, c, 1 + (x >> 40) % 3, out);
		assert_true(n <= 3 * (3 + 3) && v.n < 4);
		for (size_t k = 0; k < n; k++) {
			assert_true((unsigned char)out[k] >= ' ' || out[k] == '\n' || out[k] == '\t');
			assert_true(out[k] != 0x7f && !(out[k] == '\xc2' && (unsigned char)out[k + 1] < 0xa0));
		}
	}
}

/* Output on a terminal or into a pipe; what the program itself draws passes. */
static void print_there(void)
{
	visible_start();
	printf("\033]0;a\a%s", "\xc2");
	fflush(stdout);
	printf("\x9b" "1\n");
	fprintf(stderr, "\033[1m%d\n", 2);
	fputs("\r\033[K", visible_raw(stderr));
	fputs("\033[7m", visible_raw(stdout));
	for (int i = 0; i < 5000; i++)
		putchar(i % 50 == 49 ? '\n' : '\a');
	exit(0);
}

static size_t read_all(int fd, char *out, size_t cap)
{
	size_t n = 0;
	ssize_t r;

	while (n < cap - 1 && (r = read(fd, out + n, cap - 1 - n)) > 0)
		n += (size_t)r;
	out[n] = 0;
	return n;
}

static void on_a_terminal(void **state)
{
	static char out[40000];
	int fd, status, bells = 0;
	pid_t pid;

	(void)state;
	fflush(NULL);
	pid = forkpty(&fd, NULL, NULL, NULL);
	if (pid < 0)
		skip();                       /* no terminals here */
	if (pid == 0)
		print_there();
	read_all(fd, out, sizeof(out));
	waitpid(pid, &status, 0);
	close(fd);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	assert_non_null(strstr(out, "^[]0;a^G" BAD "1\r\n"));
	assert_non_null(strstr(out, "^[[1m2\r\n"));
	assert_non_null(strstr(out, "\r\033[K"));
	assert_non_null(strstr(out, "\033[7m"));
	for (char *s = out; (s = strstr(s, "^G")); s++)
		bells++;
	assert_int_equal(bells, 1 + 4900);
	assert_null(strchr(out, '\a'));
}

static void into_a_pipe(void **state)
{
	static char out[40000];
	int end[2], status;
	size_t n;
	pid_t pid;

	(void)state;
	fflush(NULL);
	assert_int_equal(pipe(end), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		dup2(end[1], STDOUT_FILENO);
		dup2(end[1], STDERR_FILENO);
		close(end[0]);
		close(end[1]);
		print_there();
	}
	close(end[1]);
	n = read_all(end[0], out, sizeof(out));
	waitpid(pid, &status, 0);
	close(end[0]);
	assert_true(n > 5000);
	assert_non_null(strstr(out, "\033]0;a\a\xc2"));
	assert_non_null(strstr(out, "\033[1m2\n"));
	assert_null(strstr(out, "^G"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_cut), cmocka_unit_test(all_bytes), cmocka_unit_test(on_a_terminal),
		cmocka_unit_test(into_a_pipe),
	};

	return cmocka_run_group_tests_name("visible", tests, NULL, NULL);
}
