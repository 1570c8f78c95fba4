/* session.h - what chat and generate share: a connection to the daemon, the text side of its model, and
 * one request with its answer as text.  One thread.
 */
#ifndef SESSION_H
#define SESSION_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "adapters/text/slipring-text.h"
#include "shmring/slipring.h"

/* Sampling that the options give.  The daemon says the rest (sr_model_info.sampling). */
enum session_given {
	GIVEN_TEMPERATURE = 1, GIVEN_TOP_P = 2, GIVEN_TOP_K = 4, GIVEN_MIN_P = 8, GIVEN_REPETITION = 16,
};

struct session_options {
	const char *socket, *instance, *port, *model; /* NULL: the default */
	const char *grammar, *json_schema;       /* files; NULL: none */
	const char *regex;                       /* the pattern itself */
	struct sr_request ask;                   /* what was given; prompt and stops are set per request */
	unsigned given;                          /* bits of enum session_given */
};

struct session {
	struct sr_conn *conn;
	struct sr_text *text;
	char socket[4096];
	char *piece;                 /* room for the text of one token */
	size_t piece_cap;
	struct sr_grammar *grammar;  /* what answers keep to, or NULL */
	uint32_t *bits;              /* [(vocab + 31) / 32] scratch for its guides */
};

struct session_answer {
	int finish;                  /* enum sr_finish or -errno */
	uint32_t n_prompt, n_tokens, cached;
	double ttft_ms, tokens_per_s;
};

/* Take argv[*i] and its value if it is an option of session_options.  1: taken; 0: another option;
 * -EINVAL: wrong, with a sentence in err. */
int session_option(struct session_options *o, int argc, char **argv, int *i, char *err, size_t errlen);
extern const char session_help[];

/* Connect, open the text side of the model that is served, and compile the grammar, if any.  -ENOENT or
 * -ECONNREFUSED: there is no daemon.  -EINVAL: the model has another vocabulary, or the grammar is wrong. */
int session_open(struct session *s, const struct session_options *o, char *err, size_t errlen);
void session_close(struct session *s);

/* Send a request and pass the answer's text to emit() as it comes.  *cancel != 0 ends it early.  Returns 0;
 * -errno and a sentence mean that there is no answer. */
int session_ask(struct session *s, const struct session_options *o, const char *prompt, size_t n,
                int encode_flags, void (*emit)(void *arg, const char *text, size_t n), void *arg,
                const volatile sig_atomic_t *cancel, struct session_answer *a, char *err, size_t errlen);

/* "64 tokens, TTFT 12 ms, 340.1 tokens/s" */
void session_summary(const struct session_answer *a, char *out, size_t n);

#endif
