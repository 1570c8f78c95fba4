/* client.c - the smallest whole client: sends token ids, prints the ids of the answer.
 *
 *	cc -o client client.c $(pkg-config --cflags --libs slipring)
 *	./client /run/slipring/slipring.sock 12 504 338 2443
 *
 * Text is the business of a tokenizer: see adapters/text, or ask the HTTP server.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <slipring.h>

static int fail(const char *what, int error)
{
	fprintf(stderr, "%s: %s\n", what, strerror(-error));
	return 1;
}

int main(int argc, char **argv)
{
	int32_t prompt[256];
	struct sr_request q = { .size = sizeof(q), .prompt = prompt, .max_tokens = 16 };
	struct sr_token t = { 0 };
	struct sr_conn *c;
	int n;

	if (argc < 3 || argc > 2 + 256) {
		fprintf(stderr, "usage: client SOCKET ID [ID ...]\n");
		return 2;
	}
	for (int i = 2; i < argc; i++)
		prompt[q.n_prompt++] = (int32_t)strtol(argv[i], NULL, 10);

	if ((n = sr_open(&c, argv[1], NULL)) < 0)
		return fail(argv[1], n);
	printf("model %s, %u ids, context %u\n", sr_model(c)->name, sr_model(c)->vocab, sr_model(c)->context);

	if ((n = sr_submit(c, &q, NULL)) < 0)
		return fail("submit", n);
	while (t.kind != SR_END) {
		n = sr_next(c, &t);                  /* one token, if there is one */
		if (n == 0)
			n = sr_wait(c, SR_WAIT_TOKENS, -1);
		else if (n == 1 && t.kind == SR_TOKEN)
			printf("%d\n", t.id);
		if (n < 0)
			return fail("the daemon", n);
	}
	if (t.end.finish < 0)
		return fail("the request", t.end.finish);
	printf("%s after %u tokens\n", t.end.finish == SR_STOP ? "stop" : "length", t.end.n_tokens);
	sr_close(c);
	return 0;
}
