/* generate.c - slipring generate: continues a text over the rings. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "session.h"

#define MAX_TOKENS 128

static volatile sig_atomic_t interrupted;

static void generate_interrupt(int sig)
{
	(void)sig;
	interrupted = 1;
}

static int generate_usage(FILE *to)
{
	fprintf(to, "slipring generate [OPTIONS] PROMPT..\n"
	            "\n"
	            "Sends PROMPT as it is, without a chat template, to the daemon and prints how the model\n"
	            "continues it.  Several words are joined by spaces; \"-\" reads standard input.  Ctrl-C\n"
	            "ends the answer.  Ask as in a conversation with: slipring chat --once PROMPT\n"
	            "\n"
	            "%s  --no-stream             print the answer when it is complete\n"
	            "\n"
	            "For example:  slipring generate -n 32 'The capital of Switzerland is'\n", session_help);
	return to == stdout ? 0 : 2;
}

static void print(void *arg, const char *s, size_t n)
{
	const bool *stream = arg;

	fwrite(s, 1, n, stdout);
	if (*stream)
		fflush(stdout);
}

/* Read all of standard input. */
static char *slurp(size_t *n)
{
	size_t cap = 1 << 16, k;
	char *s = malloc(cap), *p;

	for (*n = 0; s && (k = fread(s + *n, 1, cap - *n, stdin)) > 0;) {
		*n += k;
		if (*n < cap)
			continue;
		p = realloc(s, cap *= 2);
		if (!p)
			free(s);
		s = p;
	}
	return s;
}

static char *joined(int argc, char **argv, size_t *n)
{
	size_t total = 0;
	char *s, *p;

	if (argc == 1 && !strcmp(argv[0], "-"))
		return slurp(n);
	for (int i = 0; i < argc; i++)
		total += strlen(argv[i]) + 1;
	s = p = malloc(total + 1);
	for (int i = 0; s && i < argc; i++)
		p = stpcpy(stpcpy(p, i ? " " : ""), argv[i]);
	*n = s ? (size_t)(p - s) : 0;
	return s;
}

static int generate(const struct session_options *o, const char *prompt, size_t n, bool stream)
{
	struct sigaction on = { .sa_handler = generate_interrupt };
	struct session_answer a;
	char err[600], line[200];
	struct session s;
	int rc = session_open(&s, o, err, sizeof(err));

	if (!rc) {
		sigaction(SIGINT, &on, NULL);
		rc = session_ask(&s, o, prompt, n, SR_TEXT_SPECIAL_ADD, print, &stream, &interrupted, &a,
		                 err, sizeof(err));
		session_close(&s);
	}
	if (rc) {
		fprintf(stderr, "slipring generate: %s\n", err);
		return 1;
	}
	putchar('\n');
	fflush(stdout);
	session_summary(&a, line, sizeof(line));
	fprintf(stderr, "%s\n", line);
	return a.finish > 0 ? 0 : 1;
}

int cmd_generate(int argc, char **argv)
{
	struct session_options o = { .ask.max_tokens = MAX_TOKENS };
	bool stream = true;
	char err[256], *prompt;
	size_t n;
	int rc, i;

	for (i = 1; i < argc && argv[i][0] == '-' && argv[i][1]; i++) {
		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
			return generate_usage(stdout);
		if (!strcmp(argv[i], "--")) {
			i++;
			break;
		}
		if (!strcmp(argv[i], "--no-stream") || !strcmp(argv[i], "--stream")) {
			stream = argv[i][2] == 's';
			continue;
		}
		rc = session_option(&o, argc, argv, &i, err, sizeof(err));
		if (rc < 0)
			fprintf(stderr, "slipring generate: %s\n", err);
		if (!rc)
			fprintf(stderr, "slipring generate: unknown option %s; see slipring generate --help\n",
			        argv[i]);
		if (rc <= 0)
			return 2;
	}
	if (i == argc)
		return generate_usage(stderr);
	prompt = joined(argc - i, argv + i, &n);
	if (!prompt) {
		fprintf(stderr, "slipring generate: no memory\n");
		return 1;
	}
	rc = generate(&o, prompt, n, stream);
	free(prompt);
	return rc;
}
