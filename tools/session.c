/* session.c - see session.h. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/instance/config.h"
#include "core/instance/refuse.h"
#include "core/models/locate.h"
#include "core/figures/figures.h"
#include "instance.h"
#include "serve_at.h"
#include "session.h"
#include "shmring/clock.h"

#define WAIT_MS 100              /* ms until a cancel is seen, at most */
#define GRAMMAR_FILE (4 << 20)   /* bytes of a grammar or a schema */
#define GUIDES 8                 /* the fewest guided answers that can be asked for; one is used */

const char session_help[] =
	"  --socket PATH           the daemon's socket (default: that of the instance)\n"
	"  --instance NAME         which daemon (default: \"default\")\n"
	"  --port N                the daemon that \"slipring serve --port N\" runs\n"
	"  --model MODEL           the model it serves, for the tokenizer (default: found automatically)\n"
	"  -n, --max-tokens N      most tokens in an answer\n"
	"  --temperature T         0 = always the most likely token\n"
	"  --top-p P, --top-k K, --min-p P\n"
	"  --repetition-penalty R, --presence-penalty P, --frequency-penalty F\n"
	"                          what is not given is as the daemon has it: slipring show says it\n"
	"  --seed N                the same random choices every time\n"
	"  --ignore-eos            do not stop at the end of the answer\n"
	"  --json-schema FILE      the answer is JSON that this schema allows\n"
	"  --grammar FILE          the answer keeps to this grammar (GBNF or Lark)\n"
	"  --regex PATTERN         the answer matches this pattern as a whole\n";

/* Read a number in [low, high]; `whole`: an integer. */
static bool number_between(const char *s, double low, double high, bool whole, double *out)
{
	char *end;

	errno = 0;
	*out = strtod(s, &end);
	return end != s && !*end && !errno && *out >= low && *out <= high && (!whole || *out == floor(*out));
}

/* Where the value of an option that is no number goes, or NULL. */
static const char **text_option(struct session_options *o, const char *name)
{
	const struct { const char *name; const char **to; } texts[] = {
		{ "--socket", &o->socket }, { "--instance", &o->instance }, { "--port", &o->port },
		{ "--model", &o->model },
		{ "--grammar", &o->grammar }, { "--json-schema", &o->json_schema }, { "--regex", &o->regex },
	};

	for (size_t k = 0; k < sizeof(texts) / sizeof(*texts); k++)
		if (!strcmp(name, texts[k].name))
			return texts[k].to;
	return NULL;
}

int session_option(struct session_options *o, int argc, char **argv, int *i, char *err, size_t errlen)
{
	static const struct { const char *name; double low, high; bool whole; } numbers[] = {
		{ "-n", 1, 1 << 30, true }, { "--max-tokens", 1, 1 << 30, true }, { "--temperature", 0, 100, false },
		{ "--top-p", 0, 1, false }, { "--top-k", 0, 1 << 30, true }, { "--min-p", 0, 1, false },
		{ "--repetition-penalty", 0.01, 100, false }, { "--presence-penalty", -2, 2, false },
		{ "--frequency-penalty", -2, 2, false }, { "--seed", 0, 9007199254740992.0, true },
	};
	const char *name = argv[*i], *value = *i + 1 < argc ? argv[*i + 1] : NULL;
	const char **text = text_option(o, name);
	size_t k = 0;
	double d;

	if (!strcmp(name, "--ignore-eos")) {
		o->ask.flags |= SR_IGNORE_EOS;
		return 1;
	}
	while (!text && k < sizeof(numbers) / sizeof(*numbers) && strcmp(name, numbers[k].name))
		k++;
	if (!text && k == sizeof(numbers) / sizeof(*numbers))
		return 0;
	if (!value)
		return refuse(-EINVAL, err, errlen, "%s needs a value", name);
	++*i;
	if (text) {
		*text = value;
		return 1;
	}
	if (!number_between(value, numbers[k].low, numbers[k].high, numbers[k].whole, &d))
		return refuse(-EINVAL, err, errlen, "%s %s: not a %snumber from %.12g to %.12g", name, value,
		              numbers[k].whole ? "whole " : "", numbers[k].low, numbers[k].high);
	switch (k) {
	case 0:
	case 1: o->ask.max_tokens = (uint32_t)d; break;
	case 2: o->ask.sampling.temperature = (float)d; o->given |= GIVEN_TEMPERATURE; break;
	case 3: o->ask.sampling.top_p = (float)d; o->given |= GIVEN_TOP_P; break;
	case 4: o->ask.sampling.top_k = (int32_t)d; o->given |= GIVEN_TOP_K; break;
	case 5: o->ask.sampling.min_p = (float)d; o->given |= GIVEN_MIN_P; break;
	case 6: o->ask.sampling.repetition = (float)d; o->given |= GIVEN_REPETITION; break;
	case 7: o->ask.sampling.presence = (float)d; break;
	case 8: o->ask.sampling.frequency = (float)d; break;
	default:
		o->ask.sampling.seed = (uint64_t)d;
		o->ask.flags |= SR_SEEDED;
	}
	return 1;
}

/* The path of the socket on which the daemon of these options listens. */
static int session_socket(const struct session_options *o, char *out, size_t n, char *err, size_t errlen)
{
	struct config cfg = { .instance = o->instance ? o->instance : "default", .socket = o->socket };
	int rc;

	if (o->port && !(cfg.instance = serve_on(o->port, err, errlen)))
		return -EINVAL;
	rc = config_socket(&cfg, out, n);
	if (rc < 0)
		snprintf(err, errlen, "--instance %s: %s", cfg.instance, config_run_dir_why(rc));
	return rc < 0 ? rc : 0;
}

/* Open the text side of a candidate model if its vocabulary equals the daemon's. */
static int try_model(struct session *s, const char *model, char *err, size_t errlen)
{
	const struct sr_model_info *served = sr_model(s->conn);
	struct located where;
	int rc = locate_model(&where, model, err, errlen);

	if (!rc)
		rc = sr_text_open(&s->text, where.path, err, errlen);
	if (rc)
		return rc;
	if (!memcmp(sr_text_info(s->text)->vocab_hash, served->vocab_hash, sizeof(served->vocab_hash)))
		return 0;
	sr_text_close(s->text);
	s->text = NULL;
	return refuse(-EINVAL, err, errlen, "the daemon serves %.64s, whose vocabulary differs from that of %s: "
	              "name the model with --model", served->name, model ? model : where.name);
}

/* The whole of a file, malloc'ed; NULL and a sentence. */
static char *read_file(const char *path, size_t *n, char *err, size_t errlen)
{
	FILE *f = fopen(path, "r");
	char *s = f ? malloc(GRAMMAR_FILE + 1) : NULL;

	if (s)
		*n = fread(s, 1, GRAMMAR_FILE + 1, f);
	if (!s || ferror(f) || *n > GRAMMAR_FILE) {
		refuse(-EINVAL, err, errlen, "%s: %s", path,
		       s && *n > GRAMMAR_FILE ? "more than 4 MiB" : strerror(errno));
		free(s);
		s = NULL;
	}
	if (f)
		fclose(f);
	return s;
}

/* Compile the grammar that the options name, if they do. */
static int open_grammar(struct session *s, const struct session_options *o, char *err, size_t errlen)
{
	const char *file = o->grammar ? o->grammar : o->json_schema;
	enum sr_grammar_kind kind = o->grammar ? SR_GRAMMAR_EBNF : o->regex ? SR_GRAMMAR_REGEX : SR_GRAMMAR_JSON;
	size_t n = o->regex ? strlen(o->regex) : 0;
	char why[600], *source = NULL;
	int rc;

	if (!file && !o->regex)
		return 0;
	if (!!o->grammar + !!o->json_schema + !!o->regex > 1)
		return refuse(-EINVAL, err, errlen, "--grammar, --json-schema and --regex exclude each other");
	if (!sr_model(s->conn)->guides)
		return refuse(-ENOTSUP, err, errlen, "the daemon guides no answers");
	if (file && !(source = read_file(file, &n, err, errlen)))
		return -EINVAL;
	rc = sr_grammar_open(&s->grammar, s->text, kind, source ? source : o->regex, n, NULL, why, sizeof(why));
	free(source);
	if (rc)
		return refuse(rc, err, errlen, "%s: %s", file ? file : "--regex", why);
	s->bits = malloc(((size_t)sr_text_info(s->text)->vocab + 31) / 32 * sizeof(*s->bits));
	return s->bits ? 0 : refuse(-ENOMEM, err, errlen, "no memory");
}

int session_open(struct session *s, const struct session_options *o, char *err, size_t errlen)
{
	struct sr_options options = { .size = sizeof(options), .name = "slipring" };
	char first[512];
	int rc;

	if (o->grammar || o->json_schema || o->regex)
		options.guides = GUIDES;

	memset(s, 0, sizeof(*s));
	rc = session_socket(o, s->socket, sizeof(s->socket), err, errlen);
	if (rc)
		return rc;
	rc = instance_connect(&s->conn, s->socket, &options, err, errlen);
	if (rc < 0)
		return rc;
	if (o->model) {
		rc = try_model(s, o->model, err, errlen);
	} else if (try_model(s, NULL, first, sizeof(first))) {
		/* It is not the default model; perhaps the name that it is served under locates it. */
		rc = try_model(s, sr_model(s->conn)->name, err, errlen);
		if (rc)
			snprintf(err, errlen, "the tokenizer of %.64s, which the daemon serves, cannot be found: name "
			         "the model with --model", sr_model(s->conn)->name);
	}
	if (!rc) {
		s->piece_cap = sr_text_longest(s->text) + 16;
		s->piece = malloc(s->piece_cap);
		rc = s->piece ? open_grammar(s, o, err, errlen) : -ENOMEM;
	}
	if (rc)
		session_close(s);
	return rc;
}

void session_close(struct session *s)
{
	sr_close(s->conn);
	sr_grammar_close(s->grammar);
	sr_text_close(s->text);
	free(s->piece);
	free(s->bits);
	memset(s, 0, sizeof(*s));
}

/* How the daemon's answers to these options are drawn. */
static struct sr_sampling sampling_of(const struct session *s, const struct session_options *o)
{
	const struct sr_sampling *served = &sr_model(s->conn)->sampling;
	struct sr_sampling own = o->ask.sampling;

	if (!(o->given & GIVEN_TEMPERATURE))
		own.temperature = served->temperature;
	if (!(o->given & GIVEN_TOP_P))
		own.top_p = served->top_p;
	if (!(o->given & GIVEN_TOP_K))
		own.top_k = served->top_k;
	if (!(o->given & GIVEN_MIN_P))
		own.min_p = served->min_p;
	if (!(o->given & GIVEN_REPETITION))
		own.repetition = served->repetition;
	if (own.temperature <= 0) {           /* greedy: they cut nothing (as over HTTP) */
		own.top_p = own.min_p = 0;
		own.top_k = 0;
	}
	return own;
}

/* Fill the request for a prompt of n ids, and send it. */
static int submit(struct session *s, const struct session_options *o, const int32_t *ids, size_t n,
                  uint32_t *ticket, char *err, size_t errlen)
{
	const struct sr_text_info *info = sr_text_info(s->text);
	uint32_t context = sr_model(s->conn)->context;
	struct sr_request q = o->ask;
	int rc;

	if (n == 0 || n >= context)
		return refuse(-EMSGSIZE, err, errlen, "the prompt has %zu tokens; from 1 to %u are possible here", n,
		              context - 1);
	q.size = sizeof(q);
	q.sampling = sampling_of(s, o);
	q.prompt = ids;
	q.n_prompt = (uint32_t)n;
	if (!q.max_tokens || q.max_tokens > context - n)
		q.max_tokens = context - (uint32_t)n;
	if (s->grammar)                       /* a complete grammar ends the answer */
		q.flags = (q.flags & ~(uint32_t)SR_IGNORE_EOS) | SR_GUIDED;
	if (!(q.flags & SR_IGNORE_EOS)) {
		q.stop = info->stop;
		q.n_stop = (uint32_t)info->n_stop;
	}
	while ((rc = sr_submit(s->conn, &q, ticket)) == -EAGAIN)
		if ((rc = sr_wait(s->conn, SR_WAIT_ROOM, -1)) < 0 && rc != -EINTR)
			break;
	if (rc < 0)
		snprintf(err, errlen, "the daemon refused the request: %s", strerror(-rc));
	return rc < 0 ? rc : 0;
}

/* An answer under way. */
struct taking {
	struct session *s;
	uint32_t ticket;
	struct sr_guided *guided;        /* or NULL */
	int failed;                      /* of its guides: cancelled, and its end is awaited */
	struct sr_detok d;
	void (*emit)(void *, const char *, size_t);
	void *arg;
};

static int put_guide(void *ctx, uint32_t index, uint32_t kind, const int32_t *ids, uint32_t n,
                     const uint32_t *bits)
{
	const struct taking *k = ctx;

	return sr_guide(k->s->conn, k->ticket, index, kind, ids, n, bits);
}

static int begin_guides(struct taking *k, char *err, size_t errlen)
{
	int rc;

	if (!k->s->grammar)
		return 0;
	rc = sr_guided_open(&k->guided, k->s->grammar, k->s->text, 0, NULL, 0, NULL);
	if (!rc)
		rc = sr_guided_begin(k->guided, k->s->bits, put_guide, k);
	return rc ? refuse(rc, err, errlen, "the answer cannot be guided: %s", strerror(-rc)) : 0;
}

/* A token that goes into the text. */
static void take_token(struct taking *k, const struct sr_token *t, char *err, size_t errlen)
{
	struct session *s = k->s;
	int n = sr_detok_push(&k->d, s->text, t->id, s->piece, s->piece_cap);

	if (n > 0)
		k->emit(k->arg, s->piece, (size_t)n);
	if (!k->guided || t->last || k->failed)
		return;
	k->failed = sr_guided_take(k->guided, t->id, s->bits, put_guide, k);
	if (k->failed)
		snprintf(err, errlen, "the answer cannot be held to its grammar: %s", strerror(-k->failed));
}

/* Read until the request under way ends. */
static int take_answer(struct taking *k, const volatile sig_atomic_t *cancel, struct sr_end *end, char *err,
                       size_t errlen)
{
	struct session *s = k->s;
	struct sr_token t = { 0 };
	bool cancelled = false;
	int rc, n;

	sr_detok_init(&k->d, true);
	k->d.started = true;                           /* an answer goes on with its prompt */
	k->failed = begin_guides(k, err, errlen);
	for (;;) {
		if ((k->failed || (cancel && *cancel)) && !cancelled)
			cancelled = sr_cancel(s->conn, k->ticket) == 0;
		rc = sr_next(s->conn, &t);
		if (rc == 0)
			rc = sr_wait(s->conn, SR_WAIT_TOKENS, WAIT_MS);
		else if (rc == 1 && t.kind == SR_END)
			break;
		else if (rc == 1 && t.kind == SR_TOKEN && t.last != SR_STOP)
			take_token(k, &t, err, errlen);
		if (rc < 0 && rc != -EINTR)
			return refuse(rc, err, errlen, "the daemon is gone: %s", strerror(-rc));
	}
	n = sr_detok_flush(&k->d, s->piece, s->piece_cap);
	if (n > 0)
		k->emit(k->arg, s->piece, (size_t)n);
	*end = t.end;
	return k->failed;
}

int session_ask(struct session *s, const struct session_options *o, const char *prompt, size_t n,
                int encode_flags, void (*emit)(void *arg, const char *text, size_t n), void *arg,
                const volatile sig_atomic_t *cancel, struct session_answer *a, char *err, size_t errlen)
{
	struct taking k = { .s = s, .emit = emit, .arg = arg };
	uint32_t context = sr_model(s->conn)->context;
	int32_t *ids = malloc(((size_t)context + 1) * sizeof(*ids));
	uint64_t begin = sr_now();
	struct sr_end end = { 0 };
	int64_t n_ids;
	int rc;

	if (!ids)
		return refuse(-ENOMEM, err, errlen, "no memory");
	sr_doing(s->conn, SR_PREPARING, 1);
	n_ids = sr_text_encode(s->text, prompt, n, encode_flags, ids, context, context);
	rc = n_ids < 0 ? (int)n_ids : submit(s, o, ids, (size_t)n_ids, &k.ticket, err, errlen);
	sr_doing(s->conn, SR_PREPARING, -1);
	if (n_ids < 0)
		snprintf(err, errlen, "the prompt cannot be tokenized: %s", strerror((int)-n_ids));
	free(ids);
	if (!rc)
		rc = take_answer(&k, cancel, &end, err, errlen);
	sr_guided_close(k.guided);
	if (rc)
		return rc;
	*a = (struct session_answer){ .finish = end.finish, .n_prompt = (uint32_t)n_ids, .n_tokens = end.n_tokens,
	                              .cached = end.cached };
	if (end.first > begin)
		a->ttft_ms = (double)(end.first - begin) / 1e6;
	if (end.n_tokens > 1 && end.last > end.first)
		a->tokens_per_s = (end.n_tokens - 1) * 1e9 / (double)(end.last - end.first);
	return 0;
}

void session_summary(const struct session_answer *a, char *out, size_t n)
{
	int k = snprintf(out, n, "%u tokens, TTFT %.0f ms, %.1f tokens/s", a->n_tokens, a->ttft_ms,
	                 a->tokens_per_s);

	if (a->finish < 0 && k > 0 && (size_t)k < n)
		snprintf(out + k, n - (size_t)k, " (%s)",
		         a->finish == -ECANCELED ? "cancelled" : a->finish == -EDOM ?
		         "no token satisfies the grammar" : strerror(-a->finish));
}
