/* openai.h - checks a JSON request of the OpenAI API with vLLM's extensions.  Code after this point needs no
 * check of a value.
 *
 * No I/O and no globals; any thread may run it.  It has two steps, so that a wrong request costs no
 * tokenizing.  ask_parse() checks everything that needs only JSON and the limits, in vLLM's order and words.
 * ask_prompts() (prompts.c) renders, tokenizes and checks lengths.
 */
#ifndef OPENAI_H
#define OPENAI_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "problem.h"
#include "adapters/text/calls/calls.h"
#include "adapters/text/chat.h"
#include "adapters/text/slipring-text.h"
#include "core/models/defaults.h"
#include "shmring/slipring.h"

#define ASK_STOPS      4        /* stop strings, as vLLM's VLLM_MAX_STOP_STRINGS */
#define ASK_STOP_BYTES 65536    /* bytes of all stop strings together */
#define ASK_PROMPTS    1024     /* prompts in one request */
#define ASK_CHOICES    1024     /* prompts times n (vLLM: n up to 16384) */
#define ASK_SCORES     (16ll << 20) /* prompt tokens, times 1 + prompt_logprobs, times n */
#define ASK_BAD_WORDS  128
#define ASK_TEXT_BYTES (4u << 20) /* bytes of a text that is tokenized whole, for any number of tokens */
#define ASK_ID_BYTES   256      /* bytes of a request id */

/* How grammars are read: the server's rules (--structured-outputs-config), or a request's. */
struct ask_guide_rules {
	bool disable_any_whitespace, additional_properties, lenient; /* as in struct sr_grammar_options */
	bool enable_in_reasoning;     /* the grammar describes the thought, too: the answer from token 0 */
	const char *whitespace_pattern; /* NULL = the default */
};

/* What an answer must keep to: the source of a grammar, as sr_grammar_open() takes it. */
struct ask_guide {
	enum sr_grammar_kind kind;
	char *src;                    /* malloc'ed, n bytes and a NUL; NULL = the answer is free */
	size_t n;
	struct ask_guide_rules rules;
	char *whitespace;             /* owns rules.whitespace_pattern */
	struct sr_thought thought;    /* before what the grammar describes; n_end > 0: it needs guides, too */
	const char *param;            /* the field that errors name, a literal; NULL = none */
};

/* The name under which answers have thoughts: reasoning, reasoning_content, or both. */
enum ask_reasoning_field { REASONING_ALONE, REASONING_CONTENT, REASONING_BOTH };

/* Limits of a request.  Filled for each request, because the daemon may have been replaced since the last. */
struct ask_limits {
	const struct sr_text *text;
	const struct chat_template *chat; /* --chat-template; NULL: the model's */
	enum chat_content chat_content;   /* --chat-template-content-format */
	const char *response_role;
	int32_t vocab;
	int64_t context;              /* tokens; 0 = not known yet */
	int     max_logprobs;
	bool    priorities;           /* --scheduling-policy priority */
	int64_t priority;             /* of a request that gives none */
	int64_t min_priority;         /* what the request's key allows; 0 or below */
	bool    force_usage, tokens_as_ids;
	int     stream_interval;
	const char *const *names;     /* served names */
	int     n_names;
	const struct ask_limits *first, *next; /* of all models of the server, or NULL */
	struct defaults defaults;     /* for what a request leaves out */
	struct ask_guide_rules guide_rules;
	const struct calls *calls;    /* how the model writes tool calls and thoughts; NULL: no such thing */
	bool    calls_named;          /* --tool-call-parser names it */
	bool    exclude_tools;        /* with tool_choice "none" the template does not get them */
	enum ask_reasoning_field reasoning_field;
	json_t  *template_kwargs;     /* --default-chat-template-kwargs, or NULL */
};

struct ask_ids { int32_t *id; uint32_t n; };

struct prompt {
	const char *text;             /* NULL = ids were given */
	size_t n_text;
	char *own;                    /* the text if it was rendered here, to be freed */
	const char *with;             /* the second text of a pair, of n_with bytes; NULL: it is one text */
	size_t n_with;
	struct ask_ids ids;
	uint32_t second;              /* of a pair: from here on ids are of the second type; 0: none is */
};

enum ask_tool_choice { ASK_TOOLS_NONE, ASK_TOOLS_AUTO, ASK_TOOLS_REQUIRED, ASK_TOOLS_NAMED };

enum ask_kind { ASK_COMPLETION, ASK_CHAT, ASK_TOKENIZE, ASK_DETOKENIZE };

struct ask {
	enum ask_kind kind;
	json_t *root;                 /* owns every string below */

	struct prompt *prompt;        /* [n_prompts]; chat and tokenize have one */
	int     n_prompts;
	struct chat_input chat;
	const char *chat_template;
	json_t *last_content;         /* chat with echo: the string to repeat, or NULL */

	const char *model, *request_id, *cache_salt, *user, *suffix, *truncation_side;
	bool    echo, stream, include_usage, continuous_usage, logprobs_given, use_beam_search;
	bool    include_stop, ignore_eos, skip_special, spaces_between, add_special;
	bool    return_token_ids, tokens_as_ids;
	bool    timings, timings_per_token, return_progress;
	bool    prompt_ids;           /* of generate: the answer has the prompt, too */
	bool    return_prompt_text, return_token_strs, include_reasoning;
	double  temperature, top_p, min_p, presence, frequency, repetition; /* NAN = not given */
	int64_t top_k, seed, n, max_tokens, max_completion_tokens, min_tokens, priority;
	int64_t logprobs, prompt_logprobs; /* alternatives; ASK_NONE = not asked */
	int64_t truncate, stream_interval, thinking_budget;
	bool    seeded;

	int     n_stop;
	const char *stop[ASK_STOPS];
	size_t  stop_len[ASK_STOPS];
	struct ask_ids stop_ids, allowed, tokens;
	struct sr_pair *bias;
	uint32_t n_bias;
	json_t *bad_words;            /* list of strings, or NULL */
	struct ask_ids bad;           /* in the format of sr_request.bad */
	struct ask_guide guide;
	enum ask_tool_choice tool_choice;
	const char *tool_name;        /* NAMED */
	bool    parallel_calls;

	/* Requests of /v1/messages and /v1/responses, translated to a chat */
	bool    agent;                /* what only tunes is dropped where it has no effect */
	unsigned dropped;             /* bits of enum ask_dropped */
	const char *call_prefix;      /* of calls' ids; NULL = chatcmpl-tool- */
	json_t *names; /* responses: tools that are no functions, by the name in the chat; or NULL */
	char   *reply;                /* responses: fields of the request that the answer repeats, as JSON */
	bool    score_text;           /* responses: log-probabilities of the text are given */
	bool    splits;               /* its answers are split into thoughts, text and calls */
	json_t *tools;                /* a reference, if calls are parsed */
	enum calls_begin begin;       /* how its answers begin */
};

#define ASK_NONE INT64_MIN

/* What was left out of a request because no answer depends on it, or this server has no such thing. */
enum ask_dropped { DROPPED_TOOL = 1, DROPPED_ITEM = 2, DROPPED_BILLING = 4, DROPPED_MODEL = 8 };

/* Returns 0, or -1 and *p.  The caller calls ask_free in either case. */
int  ask_parse(struct ask *a, enum ask_kind kind, const char *body, size_t n,
               const struct ask_limits *l, struct problem *p);
int  ask_prompts(struct ask *a, const struct ask_limits *l, struct problem *p);
/* The first step for a request in another form: `translate` fills a->root, an empty object, with a chat. */
typedef int ask_translate(struct ask *a, json_t *given, const struct ask_limits *l, struct problem *p);
int  ask_agent(struct ask *a, ask_translate *translate, const char *body, size_t n,
               const struct ask_limits *l, struct problem *p);
/* The same for one that becomes a completion. */
int  ask_tokens(struct ask *a, ask_translate *translate, const char *body, size_t n,
                const struct ask_limits *l, struct problem *p);
ask_translate ask_messages_api, ask_responses_api, ask_generate_api; /* messages.c, responses.c, generate.c */
/* Once all is checked and tokenized, free what no answer needs: most of a large request.  Then the strings
 * of `a` are NULL, except stop, request_id, cache_salt, last_content and prompts to echo. */
void ask_slim(struct ask *a);
void ask_free(struct ask *a);

/* Parts of these two, each in its own file. */
int  ask_json(json_t **out, const char *body, size_t n, struct problem *p);        /* json.c */
int  ask_sampling(struct ask *a, const struct ask_limits *l, struct problem *p);   /* sampling.c */
int  ask_priority(const struct ask *a, const struct ask_limits *l, struct problem *p); /* sampling.c */
int  ask_model_known(const char *name, const struct ask_limits *l, struct problem *p); /* 0, -1: 404 */
int  ask_chat_inputs(struct ask *a, const struct ask_limits *l, struct problem *p); /* chat.c */
int  ask_tools(struct ask *a, const struct ask_limits *l, struct problem *p);      /* tools.c */
int  ask_messages(struct ask *a, struct problem *p);                               /* chat.c: shape only */
int  ask_render(struct ask *a, const struct ask_limits *l, struct problem *p);     /* chat.c */
int  ask_structured_shape(const struct ask *a, json_t *root, struct problem *p);   /* structured.c */
int  ask_structured(struct ask *a, const struct ask_limits *l, struct problem *p); /* structured.c */
/* structured.c.  The answer keeps to this grammar, whatever it kept to before: a text for REGEX and EBNF,
 * else a JSON value. */
int  ask_guide_set(struct ask *a, enum sr_grammar_kind kind, const json_t *source, struct problem *p);
/* structured.c.  `o` must live as long as the rules.  0 or -EINVAL. */
int  ask_guide_rules_read(struct ask_guide_rules *rules, const json_t *o, char *err, size_t errlen);
/* parts.c.  The values of an option of kind PARTS (core/instance/options.h) as one object.  0 or -EINVAL. */
int  ask_parts(json_t **out, const char *flag, const char *const *part, int n, char *err, size_t errlen);

/* The most tokens that the answer to a prompt of n_prompt tokens may have. */
int64_t ask_room(const struct ask *a, const struct ask_limits *l, uint32_t n_prompt);

#endif
