/* bench.c - slipring bench: finds the model and its tokenizer, draws the prompts, runs, reports. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "bench.h"
#include "tools/commands.h"
#include "core/models/locate.h"
#include "report.h"
#include "tools/session.h"
#include "core/instance/refuse.h"

#define RETRY_S 1.0              /* between two checks of a server that is not ready */

static volatile sig_atomic_t interrupted;

static void bench_interrupt(int sig)
{
	(void)sig;
	interrupted = 1;
}

/* All that one benchmark holds. */
struct bench {
	struct bench_options o;
	struct bench_call *call;
	struct bench_load load;
	double *at;
	struct session session;      /* ring: connection for the model's name, and its tokenizer */
	struct sr_text *text;        /* tokenizer, or NULL; owned by the session or by us */
	bool own_text;
	char base[PATH_MAX], url[PATH_MAX + 256];
	char model[512];             /* name in requests */
	char root[PATH_MAX];         /* the model's root, for the tokenizer and the file */
	char tokenizer[PATH_MAX];
	char prefix[32];
};

/* ---- the model --------------------------------------------------------------------------------- */

/* The first model that the server lists. */
static int first_model(struct bench *b, char *err, size_t errlen)
{
	char url[PATH_MAX + 16], *reply;
	json_t *j, *m;
	int rc;

	snprintf(url, sizeof(url), "%s/v1/models", b->base);
	rc = bench_fetch(&b->o, url, NULL, &reply, err, errlen);
	if (rc < 0)
		return rc;
	j = json_loads(reply, 0, NULL);
	free(reply);
	m = json_array_get(json_object_get(j, "data"), 0);
	if (rc == 200 && json_is_string(json_object_get(m, "id"))) {
		const char *id = json_string_value(json_object_get(m, "id")),
		           *root = json_string_value(json_object_get(m, "root"));

		snprintf(b->model, sizeof(b->model), "%s", id);
		snprintf(b->root, sizeof(b->root), "%s", root ? root : id);
		fprintf(b->call->say, "First model name: %s, first model id: %s\n", b->model, b->root);
		rc = 0;
	} else {
		snprintf(err, errlen, "%.500s: HTTP %d, and no model is listed; name it with --model", url, rc);
		rc = -EPROTO;
	}
	json_decref(j);
	return rc;
}

static int open_http(struct bench *b, char *err, size_t errlen)
{
	const struct bench_options *o = &b->o;
	struct located where;
	size_t n;
	int rc;

	if (o->base_url)
		snprintf(b->base, sizeof(b->base), "%s", o->base_url);
	else
		snprintf(b->base, sizeof(b->base), strchr(o->host, ':') ? "http://[%s]:%lld" : "http://%s:%lld",
		         o->host, (long long)o->port);
	for (n = strlen(b->base); n && b->base[n - 1] == '/';)
		b->base[--n] = 0;
	snprintf(b->url, sizeof(b->url), "%s%s", b->base, o->endpoint);
	if (o->model) {
		snprintf(b->root, sizeof(b->root), "%s", o->model);
		snprintf(b->model, sizeof(b->model), "%s", o->served_name ? o->served_name : o->model);
	} else {
		fprintf(b->call->say, "Model not specified, fetching first model from server...\n");
		rc = first_model(b, err, errlen);
		if (rc)
			return rc;
	}
	if (o->skip_tokenizer)
		return 0;
	snprintf(b->tokenizer, sizeof(b->tokenizer), "%s", o->tokenizer ? o->tokenizer : b->root);
	rc = locate_model(&where, b->tokenizer, err, errlen);
	if (rc && !o->tokenizer && !locate_model(&where, NULL, err, errlen) && !strcmp(where.name, b->root))
		rc = 0;                       /* the default model, by its served name */
	if (!rc)
		rc = sr_text_open(&b->text, where.path, err, errlen);
	b->own_text = !rc;
	if (rc) {
		n = strlen(err);
		snprintf(err + n, errlen - n,
		         "; --tokenizer names the tokenizer of the model that is served");
	}
	return rc;
}

static int open_ring(struct bench *b, char *err, size_t errlen)
{
	struct session_options so = { .socket = b->o.socket, .instance = b->o.instance,
	                              .model = b->o.tokenizer ? b->o.tokenizer : b->o.model };
	int rc = session_open(&b->session, &so, err, errlen);

	if (rc)
		return rc;
	b->text = b->session.text;
	snprintf(b->model, sizeof(b->model), "%s", sr_model(b->session.conn)->name);
	snprintf(b->root, sizeof(b->root), "%s", so.model ? so.model : b->model);
	snprintf(b->tokenizer, sizeof(b->tokenizer), "%s", b->root);
	snprintf(b->url, sizeof(b->url), "%s", b->session.socket);
	return 0;
}

/* ---- prompts that the server counts as we do --------------------------------------------------- */

/* The server's own count of prompt 0's tokens, or -1 if it has no /tokenize. */
static int64_t server_count(struct bench *b, const struct bench_prompt *p)
{
	json_t *ask = json_pack("{s:s, s:s%, s:b}", "model", b->model, "prompt", p->text, p->n_text,
	                        "add_special_tokens", 0), *answer;
	char *body = ask ? json_dumps(ask, 0) : NULL, url[PATH_MAX + 16], err[300], *reply = NULL;
	int64_t n = -1;

	json_decref(ask);
	snprintf(url, sizeof(url), "%s/tokenize", b->base);
	if (body && bench_fetch(&b->o, url, body, &reply, err, sizeof(err)) == 200) {
		answer = json_loads(reply, 0, NULL);
		if (json_is_array(json_object_get(answer, "tokens")))
			n = (int64_t)json_array_size(json_object_get(answer, "tokens"));
		json_decref(answer);
	}
	free(reply);
	free(body);
	return n;
}

static void compare_tokenizers(struct bench *b)
{
	const struct bench_prompt *p = &b->load.prompt[0];
	int64_t n;

	if (bench_ring(&b->o) || b->o.send_ids || !p->text || !p->ids || b->o.dataset_path)
		return;
	n = server_count(b, p);
	if (n >= 0 && n != p->n_ids)
		fprintf(stderr, "slipring bench: the server counts %lld tokens in the first prompt, the tokenizer %s "
		        "counts %u: lengths are the server's; name the right tokenizer with --tokenizer\n",
		        (long long)n, b->tokenizer, p->n_ids);
}

/* ---- runs -------------------------------------------------------------------------------------- */

static struct bench_run new_run(struct bench *b, const struct bench_load *load, const double *at)
{
	return (struct bench_run){ .o = &b->o, .load = load, .at = at, .model = b->model, .text = b->text,
	                           .url = b->url, .socket = b->session.socket, .stop = &interrupted,
	                           .salt = b->call->salt, .say = b->call->say };
}

/* Send the first prompt n times at once.  0, or an error and why the first one failed. */
static int rehearse(struct bench *b, size_t n, char *err, size_t errlen)
{
	struct bench_load load = { .prompt = calloc(n, sizeof(*load.prompt)), .n = n };
	double *at = calloc(n, sizeof(*at));
	struct bench_run r = new_run(b, &load, at);
	int rc = -ENOMEM;

	if (load.prompt && at) {
		for (size_t i = 0; i < n; i++) {
			load.prompt[i] = b->load.prompt[0];
			load.prompt[i].borrowed = true;
		}
		rc = bench_run(&r, err, errlen);
		for (size_t i = 0; !rc && i < n; i++)
			if (r.answer[i].state == BENCH_FAILED) {
				snprintf(err, errlen, "%s", r.answer[i].error);
				rc = -EIO;
			}
	}
	bench_run_free(&r);
	free(load.prompt);
	free(at);
	return interrupted ? -EINTR : rc;
}

/* The ready check and the warm-ups. */
static int bench_prepare(struct bench *b, char *err, size_t errlen)
{
	double until = bench_now() + b->o.ready_timeout;
	struct timespec nap = { .tv_sec = (time_t)RETRY_S };
	int rc = 0;

	fprintf(b->call->say, "Starting initial single prompt test run...\n");
	if (b->o.ready_timeout > 0) {
		while ((rc = rehearse(b, 1, err, errlen)) && rc != -EINTR && bench_now() < until)
			nanosleep(&nap, NULL);
		if (!rc)
			fprintf(b->call->say, "Initial test run completed.\n");
	} else {
		fprintf(b->call->say, "Skipping endpoint ready check.\n");
	}
	if (!rc && b->o.warmups > 0) {
		fprintf(b->call->say, "Warming up with %lld requests...\n", (long long)b->o.warmups);
		rc = rehearse(b, (size_t)b->o.warmups, err, errlen);
		if (!rc)
			fprintf(b->call->say, "Warmup run completed.\n");
	}
	return rc;
}

static void bench_announce(const struct bench *b)
{
	const struct bench_options *o = &b->o;
	char rate[32], burst[32], end[32];

	fprintf(b->call->say, "Starting main benchmark run...\n");
	bench_real(rate, sizeof(rate), o->ramp ? o->ramp_start : o->rate);
	bench_real(end, sizeof(end), o->ramp_end);
	bench_real(burst, sizeof(burst), o->burstiness);
	if (o->self_timed) {
		fprintf(b->call->say, "Self timing is set, using the timestamps from the trace file.\n");
		return;
	}
	if (o->ramp)
		fprintf(b->call->say, "Traffic ramp-up strategy: %s.\nWill increase RPS from %s to %s RPS over the "
		        "duration of the benchmark.\n", o->ramp, rate, end);
	else
		fprintf(b->call->say, "Traffic request rate: %s\n", rate);
	fprintf(b->call->say, "Burstiness factor: %s (%s)\n", burst,
	       o->burstiness == 1.0 ? "Poisson process" : "Gamma distribution");
	if (o->concurrency)
		fprintf(b->call->say, "Maximum request concurrency: %lld\n", (long long)o->concurrency);
	else
		fprintf(b->call->say, "Maximum request concurrency: None\n");
}

static int write_report(const struct bench *b, char *err, size_t errlen)
{
	json_t *all = json_pack("[O]", b->call->result);
	struct report_of one = { .name = b->o.label ? b->o.label : "run", .runs = all };
	int rc = all ? report_write(b->o.report, &one, 1, NULL, err, errlen) : -ENOMEM;

	json_decref(all);
	if (!rc)
		fprintf(b->call->say, "Report: %s\n", b->o.report);
	return rc;
}

static int report(struct bench *b, struct bench_run *r, char *err, size_t errlen)
{
	struct bench_about about = { b->root, *b->tokenizer ? b->tokenizer : NULL, time(NULL) };
	struct bench_summary s;
	int rc = bench_summarize(&s, r, err, errlen);

	if (rc)
		return rc;
	if (r->server)
		r->served = bench_server_result(r->server, r);
	bench_print(b->call->say, &s, r);
	bench_print_more(b->call->say, &s, r);
	if (!s.completed) {
		snprintf(err, errlen, interrupted ? "interrupted before anything was measured" :
		         "every request failed; nothing was measured");
		return interrupted ? -EINTR : -EIO;
	}
	if (b->o.save || b->o.append)
		rc = bench_save(&s, r, &about, err, errlen);
	if (!rc && b->o.baseline)
		rc = bench_save_baseline(&s, r, &about, err, errlen);
	b->call->result = bench_result(&s, r, &about, true);
	if (!rc && b->o.report)
		rc = write_report(b, err, errlen);
	return rc;
}

static int bench_measure(struct bench *b, char *err, size_t errlen)
{
	struct bench_run r;
	char why[700];
	int rc;

	b->at = calloc(b->load.n, sizeof(*b->at));
	if (!b->at || bench_arrivals(b->at, &b->load, &b->o))
		return refuse(-ENOMEM, err, errlen, "no arrivals can be drawn for %zu requests", b->load.n);
	compare_tokenizers(b);
	rc = bench_prepare(b, err, errlen);
	if (rc)
		return rc;
	bench_announce(b);
	fflush(b->call->say);
	r = new_run(b, &b->load, b->at);
	r.bar = !b->o.quiet;
	r.server = bench_server_open(&b->o, r.unserved, sizeof(r.unserved));
	rc = bench_run(&r, err, errlen);
	if (rc && r.n_done && report(b, &r, why, sizeof(why)))    /* what was measured before the failure */
		fprintf(stderr, "slipring bench: %s\n", why);
	if (!rc)
		rc = report(b, &r, err, errlen);
	bench_server_close(r.server);
	bench_run_free(&r);
	return rc;
}

/* Find every error that can be found before the first request. */
static int check_early(const struct bench_options *o, char *err, size_t errlen)
{
	struct bench_run none = { .o = o, .load = &(struct bench_load){ 0 } };
	struct bench_summary s;
	char path[PATH_MAX];
	int rc = bench_summarize(&s, &none, err, errlen);

	return rc || !o->baseline ? rc : bench_baseline_path(o->baseline, path, sizeof(path), err, errlen);
}

int bench_serve(int argc, char **argv, struct bench_call *call)
{
	struct sigaction on = { .sa_handler = bench_interrupt, .sa_flags = (int)SA_RESETHAND };
	struct bench b = { .call = call };
	uint32_t random = 0;
	char err[700] = "";
	int rc = bench_options(&b.o, argc, argv, err, sizeof(err));

	if (rc == 1)
		return 0;
	if (!rc)
		rc = check_early(&b.o, err, sizeof(err));
	if (rc) {
		fprintf(stderr, "slipring bench: %s\n", err);
		return 2;
	}
	if (!b.o.id_prefix) {
		getrandom(&random, sizeof(random), 0);
		snprintf(b.prefix, sizeof(b.prefix), "bench-%08x-", random);
		b.o.id_prefix = b.prefix;
	}
	rc = bench_ring(&b.o) ? open_ring(&b, err, sizeof(err)) : open_http(&b, err, sizeof(err));
	if (!rc)
		rc = bench_load(&b.load, &b.o, b.text, err, sizeof(err));
	if (!rc && isnan(b.o.temperature))
		fprintf(call->say, "WARNING: temperature is not set, so the server decides it; for greedy decoding "
		        "give --temperature=0.\n");
	sigaction(SIGINT, &on, NULL);
	sigaction(SIGTERM, &on, NULL);
	if (!rc)
		rc = bench_measure(&b, err, sizeof(err));
	if (rc)
		fprintf(stderr, "slipring bench: %s\n", err);
	bench_load_free(&b.load);
	free(b.at);
	if (b.own_text)
		sr_text_close(b.text);
	session_close(&b.session);
	return interrupted ? 130 : rc ? 1 : 0;
}

int cmd_bench(int argc, char **argv)
{
	bool help = argc >= 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"));
	struct bench_call call = { .say = stdout };
	int rc;

	if (argc >= 2 && !strcmp(argv[1], "sweep"))
		return bench_sweep(argc - 1, argv + 1);
	if (argc >= 2 && !strcmp(argv[1], "serve")) {
		rc = bench_serve(argc - 1, argv + 1, &call);
		json_decref(call.result);
		return rc;
	}
	if (argc >= 2 && !help)
		fprintf(stderr, "slipring bench: there is no \"%s\":\n", argv[1]);
	fprintf(help ? stdout : stderr, "slipring bench serve [FLAGS]    measure a server\n"
	        "slipring bench sweep [FLAGS]    the same over rates, concurrencies and settings\n"
	        "Each lists its flags with --help.\n");
	return help ? 0 : 2;
}
