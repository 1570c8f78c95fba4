/* calls.h - tool calls and reasoning in an answer: the formats that models write them in, and the splitter.
 *
 * formats.c has a row for each format.  A struct calls is a row, or two, with a vocabulary: read-only, any
 * thread.  A struct splitter belongs to one answer: text comes in as the model writes it, parts come out.
 * Nothing that came out is taken back.  Only the beginning of a marker, the head of a call and a value of
 * unknown type are held back.  The time is linear in the text; no number of pieces changes the result.
 */
#ifndef CALLS_H
#define CALLS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sr_text;
struct sr_thought;
struct call_format;
struct splitter;

/* ---- formats ---- */

struct calls;

/* tools, reasoning: vLLM's names of parsers.  NULL or "": chosen by markers in `source`, the chat template.
 * "none": not parsed.  text NULL: markers are ordinary text (tests).  0; -EINVAL and one sentence: no parser
 * has this name; -ENOMEM. */
int  calls_open(struct calls **out, const char *tools, const char *reasoning, const struct sr_text *text,
                const char *source, char *err, size_t errlen);
void calls_close(struct calls *c);

const char *calls_tools(const struct calls *c);      /* the name of its format of calls, or NULL */
const char *calls_reasoning(const struct calls *c);  /* the name of its format of thoughts, or NULL */
/* No template shows this format: one that does not know tools leaves it to us to describe them. */
bool calls_described(const struct calls *c);
/* An answer keeps the text of this special token although special tokens are skipped. */
bool calls_token(const struct calls *c, int32_t id);

/* How an answer to this prompt begins. */
enum calls_begin {
	CALLS_EITHER,                  /* with a thought if it begins with its marker */
	CALLS_THINKING,                /* inside a thought, which the prompt or the format opens */
	CALLS_ANSWERING                /* the prompt has closed the thought */
};
enum calls_begin calls_begin(const struct calls *c, const char *prompt, size_t n);

/* How ids of calls look. */
enum calls_ids { CALLS_IDS_LONG /* chatcmpl-tool-.. */, CALLS_IDS_NINE /* letters and digits */ };
enum calls_ids calls_ids(const struct calls *c);

/* The thought at the front of an answer that begins so; n_end 0 if the prompt has closed it.  False, and
 * n_end 0: the format has no thoughts, or their marks are more than one token. */
bool calls_thought(const struct calls *c, enum calls_begin begin, struct sr_thought *t);

/* The structural tag of an answer with calls in this format: their grammar.  A new reference; NULL and *err:
 * no memory, or the format has no grammar. */
struct calls_wish {
	json_t *tools;                 /* the request's */
	const char *name;              /* the only function that may be called, or NULL */
	bool forced;                   /* a call must come; else text may, and calls in it */
	bool many;                     /* more than one call may come */
	enum calls_begin begin;
	bool after_thought;            /* the grammar begins when the thought, if there is one, has ended */
};
json_t *calls_tag(const struct calls *c, const struct calls_wish *w, const char **err);

/* ---- the splitter ---- */

enum calls_part {
	CALLS_CONTENT, CALLS_REASONING,
	CALLS_ID,                      /* of the next call, whole, if the format has ids */
	CALLS_NAME,                    /* a call begins: its name, whole */
	CALLS_ARGUMENTS                /* of the last call; together they are one JSON text */
};

struct splitter_options {
	enum calls_begin begin;
	json_t *tools;                 /* the request's; types values without quotes; must outlive the splitter */
	bool parse_calls;              /* false: only thoughts are split off */
	bool forced;                   /* a call must come: a beginning of one that is cut is no content */
	uint32_t most;                 /* calls that are given; further ones are dropped.  0: all */
	void (*put)(void *ctx, enum calls_part part, const char *s, size_t n);
	void *ctx;
};

/* NULL: no memory. */
struct splitter *splitter_create(const struct calls *c, const struct splitter_options *o);
void splitter_free(struct splitter *s);

/* Text of the answer, in pieces of any length.  A byte CALLS_MARK stands before the text of a special token
 * that calls_token() names.  UTF-8 has no such byte. */
#define CALLS_MARK '\xff'
void splitter_text(struct splitter *s, const char *text, size_t n);
void splitter_end(struct splitter *s);

/* After splitter_end. */
struct splitter_result {
	uint32_t calls;                /* that were begun */
	bool whole;                    /* all calls were whole: none was cut or malformed */
	bool malformed;                /* one was malformed */
	bool open;                     /* the last one was cut after its name */
	bool failed;                   /* no memory: parts are missing */
};
struct splitter_result splitter_result(const struct splitter *s);

/* Remove CALLS_MARK from s[0..n); returns the new length. */
size_t calls_plain(char *s, size_t n);

#endif
