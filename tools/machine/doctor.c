/* doctor.c - slipring doctor: prints what is wrong with this machine or server and what to do.  It also makes
 * a bundle of everything that a bug report needs.
 *
 * The bundle holds no prompt and no answer, because its sources have none: the stats page has numbers, and
 * the log has events.  Keys are removed from settings and command lines. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>
#include <yaml.h>

#include "bundle.h"
#include "ceilings.h"
#include "tools/commands.h"
#include "core/instance/config.h"
#include "core/instance/knobs.h"
#include "core/models/locate.h"
#include "core/figures/figures.h"
#include "core/figures/judge.h"
#include "tools/instance.h"
#include "tools/serve_at.h"
#include "machine.h"
#include "machine_nodes.h"
#include "shmring/clock.h"

#define LOGS     8
#define LOG_MOST (4u << 20)               /* bytes from the end of each log */
#define SILENT_S 2                        /* s without a turn after which the loop hangs */

struct doctor {
	struct instance in;               /* page NULL: none */
	const char *port;
	int why_not;                      /* -errno of opening its page */
	struct finding found[FINDINGS_MOST];
	int n;
	const char *bundle, *config, *log[LOGS], *measure;
	int n_logs;
	bool json, disk;
};

static int doctor_usage(FILE *to)
{
	fprintf(to, "slipring doctor [--instance NAME] [--measure [FILE]] [--json]\n"
	        "slipring doctor --bundle FILE.tar [--log FILE ..] [--config FILE]\n"
	        "\n"
	        "Shows what this machine has, what serving needs, how to get it, and how the daemon is.\n"
	        "Exit code 0, or 1 if something is wrong (not: if something could be better).\n"
	        "\n"
	        "  --instance NAME  which daemon (default: \"default\")\n"
	        "  --port N         the daemon that \"slipring serve --port N\" runs\n"
	        "  --measure        also measure how fast the default model, or FILE, is read from disk, and\n"
	        "                   the ceilings of memory and arithmetic, which slipring bench uses\n"
	        "  --json           for programs\n"
	        "  --bundle FILE    put what a bug report needs into a tar file: versions, this table, settings\n"
	        "                   without keys, the stats page, the logs given.  No prompts, no answers\n"
	        "  --log FILE       put FILE into the bundle, at most %d; what journalctl has is there anyway\n"
	        "  --config FILE    put FILE into the bundle; default: the one the daemon was started with\n",
	            LOGS);
	return to == stdout ? 0 : 2;
}

/* ---- the daemon and its model ------------------------------------------------------------ */

static struct finding *row(struct doctor *d, const char *what, enum finding_level level, const char *need,
                           const char *how)
{
	struct finding *f = &d->found[d->n++];

	*f = (struct finding){ .what = what, .level = level };
	snprintf(f->need, sizeof(f->need), "%s", need);
	snprintf(f->how, sizeof(f->how), "%s", how);
	return f;
}

static void look_at_model(struct doctor *d)
{
	static struct located where;
	char err[300] = "";
	int r = locate_model(&where, NULL, err, sizeof(err));
	struct finding *f = row(d, "default model", r < 0 ? FINDING_HINT : FINDING_FINE,
	                        "or any other: serve MODEL", err);

	snprintf(f->have, sizeof(f->have), "%.150s", r < 0 ? "not there" : where.name);
	if (d->disk) {
		fprintf(stderr, "slipring doctor: reading %s, then measuring memory and arithmetic: some seconds\n",
		        d->measure ? d->measure : where.path);
		machine_disk(&d->found[d->n++], d->measure ? d->measure : where.path);
		ceilings_look(&d->found[d->n++]);
	}
}

static void no_daemon(struct doctor *d)
{
	static const struct { int e; enum finding_level level; const char *have, *how; } cases[] = {
		{ -ENOENT, FINDING_HINT, "none is running there", "slipring serve, or systemctl start slipring" },
		{ -ENOTDIR, FINDING_HINT, "none is running there", "slipring serve, or systemctl start slipring" },
		{ -EPROTO, FINDING_WRONG, "of another version", "use the slipring of its version" },
		{ -EACCES, FINDING_WRONG, "its page is not readable for us", "become a member of its group" },
	};
	struct finding *f = row(d, "daemon", FINDING_WRONG, "one that runs", "");

	snprintf(f->have, sizeof(f->have), "%.100s: %s", d->in.dir, strerror(-d->why_not));
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		if (cases[i].e == d->why_not) {
			f->level = cases[i].level;
			snprintf(f->have, sizeof(f->have), "%.100s: %s", d->in.dir, cases[i].have);
			snprintf(f->how, sizeof(f->how), "%s", cases[i].how);
		}
}

/* The processes among which the model is divided: is each there, were some lost, and is one late? */
static void look_at_ranks(struct doctor *d, const struct stats_page *p)
{
	uint64_t n = p->n_ranks < STATS_RANKS ? p->n_ranks : STATS_RANKS;
	int late = judge_late_rank(p);
	double busy = 0;
	struct finding *f;

	if (!n)
		return;
	for (int i = 0; i < N_BOUND; i++)
		busy += i == BOUND_IDLE ? 0 : (double)p->count.bound_ns[i] / 1e9;
	f = row(d, "its ranks", FINDING_FINE, "", "");
	for (uint64_t i = 0; i < n; i++)
		if (kill((pid_t)p->rank[i].pid, 0) < 0 && errno == ESRCH) {
			f->level = FINDING_WRONG;
			snprintf(f->have, sizeof(f->have), "rank %llu (pid %llu) is gone", (unsigned long long)i,
			         (unsigned long long)p->rank[i].pid);
			snprintf(f->how, sizeof(f->how),
			         "the daemon starts all ranks again, and requests go on; after the "
			         "third loss in ten minutes it ends (70).  Its log names the cause");
			return;
		}
	snprintf(f->have, sizeof(f->have),
	         "%llu, lost and started again %llu times; rank %d was late most, %.2f s of %.0f",
	         (unsigned long long)n, (unsigned long long)p->count.device_restarts, late,
	         (double)p->rank[late].late_ns / 1e9, busy);
	if (p->count.device_restarts) {
		f->level = FINDING_HINT;
		snprintf(f->need, sizeof(f->need), "none lost");
		snprintf(f->how, sizeof(f->how),
		         "no request was lost by it; the daemon's log says which rank died or hung, and "
		         "of what (grep rank), the kernel's log knows of memory and of GPUs (dmesg)");
	}
}

/* Did others hold its cores in the last five minutes? */
static void look_at_cores(struct doctor *d, const struct stats_page *p)
{
	struct stats_mark from, now;
	struct figures figures;
	struct verdict v;
	struct finding *f;
	char age[32];

	figures_now(p, instance_alive(&d->in), &now);
	judge_since(p, &now, 300, &from);
	figures_between(&from, &now, &figures);
	judge_interval(&v, p, &figures, from.at_ns);
	if (!p->ready_ns || figures.bound_all - figures.bound_s[BOUND_IDLE] < 1)
		return;                      /* it computed for less than a second */
	f = row(d, "its cores", FINDING_FINE, "", "");
	figures_age(age, sizeof(age), figures.seconds);
	if (!p->cores_known)
		snprintf(f->have, sizeof(f->have), "whether others hold them is not known: this kernel does not "
		         "count it (schedstat)");
	else
		snprintf(f->have, sizeof(f->have), "ready without one for %.0f %% of its time under way, in the last "
		         "%.20s", v.cores_share * 100, age);
	if (judge_lacks_cores(&v)) {
		f->level = FINDING_HINT;
		snprintf(f->need, sizeof(f->need), "less than 20 %%");
		snprintf(f->how, sizeof(f->how), "%s", judge_cores_advice(&v));
	}
}

static void look_at_daemon(struct doctor *d)
{
	const struct stats_page *p = d->in.page;
	uint64_t now = sr_now(), alive;
	double ready_s = p->ready_ns && now > p->ready_ns ? (double)(now - p->ready_ns) / 1e9 : 0;
	struct finding *f;
	char age[32];

	alive = __atomic_load_n(&p->alive_ns, __ATOMIC_RELAXED);
	figures_age(age, sizeof(age), ready_s);
	if (!instance_alive(&d->in)) {
		f = row(d, "daemon", FINDING_WRONG, "one that runs", "it was killed or it crashed: see its log, or "
		        "dmesg if memory ran out; the service manager starts it again");
		snprintf(f->have, sizeof(f->have), "%.60s: process %u is gone", d->in.name, p->pid);
		return;
	}
	f = row(d, "daemon", FINDING_FINE, "", "");
	snprintf(f->have, sizeof(f->have), "%.30s: pid %u, %.10s for %.20s, %.40s on %.20s", d->in.name,
	         p->pid, p->state, age, p->model, p->device);
	if (p->busy_since_ns && now > alive && now - alive > SILENT_S * 1000000000ull) {
		f = row(d, "its loop", FINDING_WRONG, "a turn, or a layer, every few ms", "it hangs while it has "
		        "work: make a bundle and a core dump (gcore) before you restart it");
		snprintf(f->have, sizeof(f->have), "no turn for %.0f s", (double)(now - alive) / 1e9);
	}
	look_at_ranks(d, p);
	look_at_cores(d, p);
	if (*p->kernels_off) {
		f = row(d, "its GPU's kernels", FINDING_HINT, "all of them", "they differed from plain ones on this "
		        "GPU and driver, or SLIPRING_CUDA_WITHOUT names them: answers are right, and slower; the "
		        "daemon's log says where");
		snprintf(f->have, sizeof(f->have), "off: %.120s", p->kernels_off);
	}
	if (p->count.died || p->count.refused || p->count.invalid) {
		f = row(d, "its clients", FINDING_FINE, "", "");
		snprintf(f->have, sizeof(f->have), "%llu clients died with requests running, %llu were refused, %llu "
		         "requests were invalid",
		         (unsigned long long)p->count.died, (unsigned long long)p->count.refused,
		         (unsigned long long)p->count.invalid);
	}
}

/* ---- the table --------------------------------------------------------------------------- */

static const char *const level_name[] = { "ok", "hint", "WRONG" };

static int print_table(const struct doctor *d, FILE *to)
{
	int count[3] = { 0, 0, 0 };

	for (int i = 0; i < d->n; i++) {
		const struct finding *f = &d->found[i];

		fprintf(to, "%-6s %-14s %-44s %s%s\n", level_name[f->level], f->what, f->have, *f->need ?
		        "need: " : "", f->need);
		if (*f->how)
			fprintf(to, "       %-14s -> %s\n", "", f->how);
		count[f->level]++;
	}
	fprintf(to, "%d ok, %d could be better, %d wrong\n", count[FINDING_FINE], count[FINDING_HINT],
	        count[FINDING_WRONG]);
	return count[FINDING_WRONG] > 0;
}

static json_t *table_json(const struct doctor *d)
{
	json_t *all = json_array();

	for (int i = 0; i < d->n; i++) {
		const struct finding *f = &d->found[i];

		json_array_append_new(all, json_pack("{s:s, s:s, s:s, s:s, s:s}", "what", f->what, "level",
			level_name[f->level], "have", f->have, "need", f->need, "how", f->how));
	}
	return all;
}

/* ---- the bundle -------------------------------------------------------------------------- */

/* A growing text.  What does not fit into memory is left out. */
struct report_text { char *p; size_t n; FILE *f; };

static bool text_open(struct report_text *t)
{
	*t = (struct report_text){ NULL, 0, NULL };
	return (t->f = open_memstream(&t->p, &t->n)) != NULL;
}

static void text_add(struct report_text *t, struct bundle *b, const char *name)
{
	fclose(t->f);
	if (t->p)
		bundle_add(b, name, t->p, t->n);
	free(t->p);
}

/* Add the last part of a file, unchanged. */
static void add_file(struct bundle *b, const char *name, int dir, const char *path)
{
	char *buf = malloc(LOG_MOST);
	int fd = openat(dir, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	off_t end = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);
	size_t n = 0;
	ssize_t got;

	if (fd >= 0)
		lseek(fd, end > (off_t)LOG_MOST ? end - (off_t)LOG_MOST : 0, SEEK_SET);
	while (buf && fd >= 0 && n < LOG_MOST && (got = read(fd, buf + n, LOG_MOST - n)) > 0)
		n += (size_t)got;
	if (buf && fd >= 0)
		bundle_add(b, name, buf, n);
	if (fd >= 0)
		close(fd);
	free(buf);
}

/* Add both programs' lines from the service manager's journal, if there is one. */
static void add_journal(struct bundle *b, const char *instance)
{
	bool plain = !strcmp(instance, "default");
	char command[200], *buf = malloc(LOG_MOST);
	size_t n = 0;
	FILE *f;

	snprintf(command, sizeof(command), "journalctl -q --no-pager -o short-iso-precise -n 20000 "
	         "-u slipring%s%.48s -u slipring-http 2>/dev/null", plain ? "" : "@", plain ? "" : instance);
	if (buf && (f = popen(command, "re"))) {
		n = fread(buf, 1, LOG_MOST, f);
		pclose(f);
	}
	if (n)
		bundle_add(b, "journal.txt", buf, n);
	free(buf);
}

static bool is_secret(const char *name)
{
	static const char *const secret[] = { "api-key", "metrics-key", "hf-token", "password", "secret" };
	char s[64];
	size_t n = 0;

	name += strspn(name, "-");
	for (; name[n] && name[n] != '=' && n < sizeof(s) - 1; n++)
		s[n] = name[n] == '_' ? '-' : name[n];
	s[n] = 0;
	if (!strcmp(s, "api-key-file"))
		return false;
	for (size_t i = 0; i < sizeof(secret) / sizeof(secret[0]); i++)
		if (strstr(s, secret[i]))
			return true;
	return false;
}

/* Add the command line of the daemon without the values of secret flags. */
static void add_cmdline(struct bundle *b, int proc)
{
	char buf[65536];
	struct report_text t;
	ssize_t n;
	bool secret = false;
	int fd = openat(proc, "cmdline", O_RDONLY | O_CLOEXEC);

	n = fd < 0 ? 0 : read(fd, buf, sizeof(buf) - 1);
	if (fd >= 0)
		close(fd);
	if (n <= 0 || !text_open(&t))
		return;
	buf[n] = 0;
	for (char *w = buf; w < buf + n; w += strlen(w) + 1) {
		if (!strncmp(w, "--", 2)) {
			secret = is_secret(w);
			fprintf(t.f, "%.*s%s\n", secret ? (int)strcspn(w, "=") : (int)strlen(w), w,
			        secret && strchr(w, '=') ? "=(removed)" : "");
		} else {
			fprintf(t.f, "%s\n", secret ? "(removed)" : w);
		}
	}
	text_add(&t, b, "cmdline.txt");
}

/* Parse the YAML settings and write them anew.  This drops comments, which may hold an old key. */
static void add_config(struct bundle *b, const char *path)
{
	FILE *f = fopen(path, "re");
	yaml_parser_t parser;
	yaml_document_t doc;
	yaml_node_t *root;
	struct report_text t;

	if (!f || !text_open(&t)) {
		if (f)
			fclose(f);
		return;
	}
	fprintf(t.f, "# %s, without keys and comments\n", path);
	yaml_parser_initialize(&parser);
	yaml_parser_set_input_file(&parser, f);
	if (!yaml_parser_load(&parser, &doc)) {
		fprintf(t.f, "# it cannot be read as YAML: line %zu: %s\n", parser.problem_mark.line + 1,
		        parser.problem ? parser.problem : "?");
	} else {
		root = yaml_document_get_root_node(&doc);
		for (yaml_node_pair_t *i = root && root->type == YAML_MAPPING_NODE ?
		     root->data.mapping.pairs.start : NULL;
		     i && i < root->data.mapping.pairs.top; i++) {
			yaml_node_t *k = yaml_document_get_node(&doc, i->key),
				*v = yaml_document_get_node(&doc, i->value);
			const char *key = k->type == YAML_SCALAR_NODE ? (const char *)k->data.scalar.value :
				"?";

			if (is_secret(key))
				fprintf(t.f, "%s: (removed)\n", key);
			else if (v->type == YAML_SCALAR_NODE)
				fprintf(t.f, "%s: %s\n", key, (const char *)v->data.scalar.value);
			else
				fprintf(t.f, "%s: (a list or a mapping)\n", key);
		}
		yaml_document_delete(&doc);
	}
	yaml_parser_delete(&parser);
	fclose(f);
	text_add(&t, b, "config.yaml");
}

static void add_versions(struct bundle *b)
{
	struct utsname u;
	time_t now = time(NULL);
	struct report_text t;
	char when[64];

	if (!text_open(&t))
		return;
	uname(&u);
	strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
	fprintf(t.f, "slipring %s, compiled by %s\n%s %s %s %s\nmade %s\njansson %s, libyaml %s\n\n",
	        SLIPRING_VERSION,
	        __VERSION__, u.sysname, u.release, u.version, u.machine, when, JANSSON_VERSION,
	        yaml_get_version_string());
	text_add(&t, b, "versions.txt");
	add_file(b, "os-release.txt", AT_FDCWD, "/etc/os-release");
	add_file(b, "meminfo.txt", AT_FDCWD, "/proc/meminfo");
}

/* Add the page for our tools, and its content in words. */
static void add_stats(struct bundle *b, const struct doctor *d)
{
	const struct stats_page *p = d->in.page;
	struct stats_mark zero = { .at_ns = p->ready_ns }, now;
	struct figures f;
	struct report_text t;
	char s[40];

	bundle_add(b, "stats.bin", p, sizeof(*p));
	if (!text_open(&t))
		return;
	figures_now(p, instance_alive(&d->in), &now);
	figures_between(&zero, &now, &f);
	fprintf(t.f, "%s: %s on %s, %s, pid %u, alive %d, ready for %.1f s\n", d->in.name, p->model,
	        p->device, p->state, p->pid, instance_alive(&d->in), f.seconds);
	fprintf(t.f, "running %llu, waiting %llu, clients %llu, KV blocks %llu of %llu of %llu tokens, %s\n",
	        (unsigned long long)p->running, (unsigned long long)p->waiting, (unsigned long long)p->clients,
	        (unsigned long long)p->blocks_used, (unsigned long long)p->n_blocks,
	        (unsigned long long)p->block_tokens, p->kv_dtype);
	fprintf(t.f, "prompt tokens %llu, generated %llu, requests ended %llu",
	        (unsigned long long)f.n.prompt_tokens, (unsigned long long)f.n.generation_tokens,
	        (unsigned long long)f.ended);
	for (size_t i = 0; i < COUNTERS_NAMED; i++)
		if (counter_info(i)->lost)
			fprintf(t.f, ", %s %llu", counter_info(i)->name, (unsigned long long)counter_value(&f.n, i));
	fprintf(t.f, ", steps %llu\n", (unsigned long long)f.n.steps);
	for (int i = 0; i < N_WHY; i++)
		fprintf(t.f, "why %s %.3f s\n", sched_why_name(i), f.why_s[i]);
	for (int i = 0; i < N_BOUND; i++)
		fprintf(t.f, "bound %s %.3f s\n", sched_bound_name(i), f.bound_s[i]);
	for (int k = 0; k < N_KNOBS; k++) {
		knob_format((enum knob)k, p->knob[k], s, sizeof(s));
		fprintf(t.f, "%s %s\n", knob_info((enum knob)k)->name, s);
	}
	text_add(&t, b, "stats.txt");
}

/* Add the process that the page names, if the page's owner runs it.  The page could name any process. */
static void add_process(struct bundle *b, const struct stats_page *p)
{
	static const char *const files[] = { "status", "limits", "cgroup" };
	char path[64], name[32], status[4096] = "";
	const char *uid;
	int proc, fd;

	snprintf(path, sizeof(path), "/proc/%u", p->pid);
	proc = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	fd = proc < 0 ? -1 : openat(proc, "status", O_RDONLY | O_CLOEXEC);
	if (fd >= 0 && read(fd, status, sizeof(status) - 1) < 0)
		*status = 0;
	uid = strstr(status, "\nUid:\t");
	if (uid && strtoul(uid + 6, NULL, 10) == stats_owner(p)) {
		for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
			snprintf(name, sizeof(name), "%s.txt", files[i]);
			add_file(b, name, proc, files[i]);
		}
		add_cmdline(b, proc);
	}
	if (fd >= 0)
		close(fd);
	if (proc >= 0)
		close(proc);
}

static int make_bundle(const struct doctor *d)
{
	char why[6000] = "";
	const char *config = d->config || !d->in.page ? d->config : instance_config(&d->in, why, sizeof(why));
	json_t *j = table_json(d);
	char *json = json_dumps(j, JSON_INDENT(1)), name[32];
	struct bundle b;
	struct report_text t;
	int e = bundle_open(&b, d->bundle, "slipring-bundle");

	if (e == 0) {
		add_versions(&b);
		if (text_open(&t)) {
			print_table(d, t.f);
			text_add(&t, &b, "doctor.txt");
		}
		if (json)
			bundle_add(&b, "doctor.json", json, strlen(json));
		if (config)
			add_config(&b, config);
		else if (*why)
			bundle_add(&b, "no-config.txt", why, strlen(why));
		if (d->in.page) {
			add_stats(&b, d);
			add_process(&b, d->in.page);
		}
		add_journal(&b, d->in.name);
		for (int i = 0; i < d->n_logs; i++) {
			snprintf(name, sizeof(name), "log-%d.txt", i + 1);
			add_file(&b, name, AT_FDCWD, d->log[i]);
		}
		e = bundle_close(&b);
	}
	free(json);
	json_decref(j);
	if (e < 0)
		fprintf(stderr, "slipring doctor: --bundle %s: %s\n", d->bundle, e == -EEXIST ?
		        "exists and is not overwritten: name another file" : strerror(-e));
	else
		printf("%s: look through it before you send it (tar xf): versions, settings without keys, "
		       "counters, what journalctl has%s\n", d->bundle, d->n_logs ? ", the logs you gave" : "");
	return e < 0;
}

/* ---- the command ------------------------------------------------------------------------- */

static bool doctor_word(struct doctor *d, int argc, char **argv, int *i)
{
	const char *w = argv[*i], *next = *i + 1 < argc ? argv[*i + 1] : NULL;

	if (!strcmp(w, "--json"))
		return d->json = true;
	if (!strcmp(w, "--measure")) {
		if (next && next[0] != '-')
			d->measure = argv[++*i];
		return d->disk = true;
	}
	if (!next)
		return false;
	++*i;
	if (!strcmp(w, "--instance"))
		d->in.name = next;
	else if (!strcmp(w, "--port"))
		d->port = next;
	else if (!strcmp(w, "--bundle"))
		d->bundle = next;
	else if (!strcmp(w, "--config"))
		d->config = next;
	else if (!strcmp(w, "--log") && d->n_logs < LOGS)
		d->log[d->n_logs++] = next;
	else
		return false;
	return true;
}

/* Can the named file be read?  This is reported before anything is created. */
static bool readable(const struct doctor *d)
{
	for (int i = -1; i < d->n_logs; i++) {
		const char *f = i < 0 ? d->config : d->log[i];

		if (f && access(f, R_OK) < 0) {
			fprintf(stderr, "slipring doctor: %s: %s\n", f, strerror(errno));
			return false;
		}
	}
	return true;
}

int cmd_doctor(int argc, char **argv)
{
	static struct doctor d;
	json_t *j;
	int r, at;

	d.in.name = "default";
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
			return doctor_usage(stdout);
		at = i;
		if (!doctor_word(&d, argc, argv, &i))
			return command_wrong("doctor", argv, at, i);
	}
	if (!readable(&d) || (d.port && !(d.in.name = serve_found("doctor", d.port))))
		return 1;
	r = config_find_run_dir(d.in.name, d.in.dir, sizeof(d.in.dir));
	if (r < 0) {
		fprintf(stderr, "slipring doctor: --instance %s: %s\n", d.in.name, config_run_dir_why(r));
		return 2;
	}
	d.why_not = stats_open(&d.in.page, d.in.dir);
	d.n = machine_look(d.found);
	d.n += machine_nodes(d.found + d.n,
	                     &(struct machine_at){ .root = "",
	                                           .pid = d.in.page && instance_alive(&d.in) ? d.in.page->pid : 0,
	                                           .cuda = d.in.page && !strcmp(d.in.page->device, "cuda") });
	look_at_model(&d);
	if (d.in.page)
		look_at_daemon(&d);
	else
		no_daemon(&d);
	if (d.bundle) {
		r = make_bundle(&d);
	} else if (d.json) {
		j = table_json(&d);
		r = json_dumpf(j, stdout, JSON_INDENT(1)) < 0;
		putchar('\n');
		json_decref(j);
		for (int i = 0; i < d.n; i++)
			r |= d.found[i].level == FINDING_WRONG;
	} else {
		r = print_table(&d, stdout);
	}
	instance_close(&d.in);
	return r;
}
