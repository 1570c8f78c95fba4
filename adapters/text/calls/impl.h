/* impl.h - rows of formats, and the splitter as its files share it. */
#ifndef CALLS_IMPL_H
#define CALLS_IMPL_H

#include "calls.h"

/* ---- rows ---- */

enum call_style {
	CALL_NONE,                     /* only thoughts */
	CALL_OBJECT,                   /* a JSON object with name and arguments, or a list of them */
	CALL_NAMED,                    /* the name, then JSON */
	CALL_TAGGED,                   /* the name, then keys and values between markers */
	CALL_PYTHON,                   /* F(K=V, ..), G() */
	CALL_GEMMA,                    /* F{K:V,..} with a quote of its own */
	CALL_HARMONY                   /* messages with a head: channel and recipient */
};

/* Markers of a row.  Those of a harmony row have names of their own. */
enum {
	M_THINK, M_THINK_END,
	M_SECTION, M_SECTION_END,      /* around all calls */
	M_CALL, M_CALL_END,            /* around one */
	M_NAME_END,
	M_ID,                          /* between name and id */
	M_KEY, M_KEY_END, M_VALUE, M_VALUE_END, /* TAGGED */
	M_QUOTE,                       /* GEMMA: around strings */
	M_LAST,
	M_START = M_SECTION, M_END = M_SECTION_END, M_CHANNEL = M_CALL, M_SENT = M_CALL_END,
	M_MESSAGE = M_NAME_END, M_RETURN = M_ID, M_CONSTRAIN = M_KEY
};

struct call_format {
	const char *name[6];           /* vLLM's parser names; the first is the row's own */
	enum call_style style;
	const char *mark[M_LAST];
	const char *seen;              /* a template of this format has this and `also`; NULL: never chosen */
	const char *also;
	const char *name_field, *args_field; /* OBJECT; name_field "": the key is the name */
	const char *tail;              /* between arguments and M_CALL_END in what the model writes */
	const char *between;           /* calls */
	const char *prefix;            /* NAMED: before the name, and ':' after it: the id is all of it */
	const char *gap;               /* between the markers: "\n" or "" */
	bool list;                     /* calls are in [ ] */
	bool bare;                     /* no marker: { or [ begins a call */
	bool flagged;                  /* TAGGED: K" string="true */
	bool lines;                    /* TAGGED: a line feed at each end of a value is markup */
	enum calls_ids ids;
};

struct think_format {
	const char *name[8];
	const char *start, *end;
	const char *alternative;       /* another end, or NULL */
	const char *seen;              /* a template with this text has it; NULL: never chosen */
	bool opened;                   /* the answer begins inside a thought */
	bool ends_at_call;             /* a call ends the thought, too */
};

const struct call_format *format_named(const char *name);
const struct call_format *format_of(const char *source);
/* The row that the template's own renderings of calls show, for free(); NULL: it shows none clearly.
 * think_end: the end of a thought, or NULL. */
struct call_format *format_derived(const char *source, const char *think_end);
const struct think_format *think_named(const char *name);
const struct think_format *think_of(const char *source);
void formats_list(char *out, size_t cap);    /* the names of tool parsers */
void thinks_list(char *out, size_t cap);

/* Text with CALLS_MARK before each special token. */
struct marker { char *s; size_t n; int32_t id; /* -1: not one token */ };

struct calls {
	const struct call_format *format;      /* never NULL; style NONE */
	struct call_format *derived;           /* it, if the template alone shows it; or NULL */
	const struct think_format *think;      /* or NULL */
	struct marker mark[M_LAST], think_also;
	int32_t *token;                        /* [n_tokens] special tokens in markers */
	char **spelling;                       /* [n_tokens] */
	int n_tokens;
};

/* ---- the splitter ---- */

#define HEAD_MOST 65536            /* bytes of a call before its name is known */
#define NAME_MOST 256
#define BLANK_MOST 4096
#define DEPTH_MOST 128

struct bytes { char *p; size_t n, cap; };

/* Where a JSON value ends. */
struct json_run { uint32_t depth; bool begun, string, escape, word, done; };

/* A literal of Python or Gemma, and the JSON that it becomes. */
struct literal {
	uint32_t depth;
	char closer[DEPTH_MOST];       /* of each bracket: ) ] } */
	int state;
	char quote;
	struct bytes word;
	uint32_t digits, code;         /* digits to come of \x.., \u..; their value so far */
	bool escaped, comma, key;      /* after \; a comma is due; it is a key */
};

enum split_state {
	SPLIT_BEGIN, SPLIT_THOUGHT, SPLIT_TEXT, SPLIT_SECTION,
	SPLIT_OBJECT, SPLIT_NAME, SPLIT_JSON, SPLIT_TAGS, SPLIT_LITERAL, SPLIT_HEAD, SPLIT_BODY,
	SPLIT_AFTER, SPLIT_SKIP
};

struct splitter {
	const struct calls *c;
	struct splitter_options o;
	enum split_state state;
	int at;                        /* within the state; each file has its own numbers */
	struct bytes in;               /* not consumed yet */
	size_t from;                   /* consumed bytes of it */
	bool end;                      /* nothing more comes */
	bool failed, broken, cut;

	struct bytes blank;            /* white space that is content only if text follows */
	bool fresh;                    /* no text since the beginning or the last call */
	bool in_section, in_list, in_call;
	struct bytes head;             /* consumed bytes since the marker, while a failure makes them content */
	bool keep_head;
	struct bytes name, id, word, args; /* word: a key; args: arguments before the name */
	uint32_t n_calls;
	bool muted;                    /* this call is not given */
	uint32_t nested;
	struct json_run run;
	struct literal lit;
	json_t *parameters;            /* of the tool that is called: its schema */
	int value;                     /* TAGGED: how the value is written */
	uint32_t n_keys;
	int body;                      /* HARMONY: what a message is */
	bool newline;                  /* TAGGED: a line feed of the value is held back */
};

enum found { FOUND_NO, FOUND_PART, FOUND_YES };

/* split.c */
bool bytes_add(struct splitter *s, struct bytes *b, const char *p, size_t n);
const char *split_at(const struct splitter *s, size_t *n);       /* what is not consumed */
void split_take(struct splitter *s, size_t n);                   /* consume */
size_t split_blanks(const struct splitter *s);                   /* white space at the front */
enum found split_find(const struct splitter *s, int mark);       /* is it at the front? */
/* Bytes before the first of the markers m[0..n), or of what may become one; *which: its index, or -1. */
size_t split_until(const struct splitter *s, const int *m, int n, int *which);
/* Of n bytes as many as b takes with at most `most`, and one more. */
size_t split_room(const struct bytes *b, size_t most, size_t n);
void split_put(struct splitter *s, enum calls_part part, const char *p, size_t n);
void split_open(struct splitter *s, enum split_state to);        /* the head of a call begins */
void split_announce(struct splitter *s);                         /* name and id are whole */
void split_args(struct splitter *s, const char *p, size_t n);
void split_close(struct splitter *s);                            /* the arguments are whole */
void split_fail(struct splitter *s);                             /* it is no call */

/* Each consumes what it can.  False: it needs more text. */
bool split_object(struct splitter *s);       /* json.c */
bool split_json(struct splitter *s);
size_t json_run(struct json_run *r, const char *p, size_t n);    /* bytes of the value */
bool split_name(struct splitter *s);         /* tagged.c */
bool split_tags(struct splitter *s);
bool split_literal(struct splitter *s);      /* literal.c */
bool split_number(const char *p, size_t n);  /* of JSON */
bool split_head(struct splitter *s);         /* harmony.c */
bool split_body(struct splitter *s);
void split_key(struct splitter *s);          /* s->word is the next argument's */
void split_quoted(struct splitter *s, const char *p, size_t n);  /* as the inside of a JSON string */

#endif
