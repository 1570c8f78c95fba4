/* pull.c - slipring pull: downloads a model from a Hugging Face hub into the cache where serve and show find
 * it.  This command alone downloads: daemon and adapter never open a connection. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include <jansson.h>

#include "core/instance/refuse.h"
#include "core/models/locate.h"
#include "hub.h"
#include "shmring/clock.h"
#include "tools/commands.h"
#include "tools/visible.h"

#define QUANTS_MAX 200 /* that are listed */

struct pull {
	char id[256];
	const char *quant, *revision;
	bool json, list;
	struct hub_repo repo;
	const struct hub_file **want; /* [n_want] */
	int32_t n_want;
	struct store store;
	/* progress */
	int64_t all, have, begun_with;
	uint64_t begun, shown;
	bool terminal;
	char err[1024];
};

static int pull_usage(void)
{
	printf(
		"usage: slipring pull ID[:QUANT] [--revision R] [--list] [--json]\n"
		"\n"
		"Downloads a model from the Hugging Face hub into the cache that slipring serve ID[:QUANT] and\n"
		"other programs read: HF_HUB_CACHE, HF_HOME/hub or ~/.cache/huggingface/hub.  What is there is not\n"
		"downloaded again, what was cut off goes on, and each file is checked by the hub's hash of it.\n"
		"\n"
		"  ID           org/name, as in the address of its page\n"
		"  QUANT        of several GGUF files, the one whose name ends so: Q4_K_M\n"
		"  --revision   a branch, tag or commit; default main\n"
		"  --list       show which files there are, and stop\n"
		"  --json       for programs: one object at the end\n"
		"\n"
		"HF_ENDPOINT is another hub than https://huggingface.co; HF_TOKEN is for models that want one.\n");
	return 0;
}

static int failed(struct pull *p)
{
	if (p->json) {
		json_t *j = json_pack("{s:s, s:s}", "id", p->id, "error", p->err);

		json_dumpf(j, stdout, JSON_COMPACT);
		putchar('\n');
		json_decref(j);
	} else {
		fprintf(stderr, "slipring pull: %s\n", p->err);
	}
	return 1;
}

/* "1.2 GiB" */
static const char *size_text(char out[32], int64_t n)
{
	static const char *const unit[] = { "bytes", "KiB", "MiB", "GiB", "TiB" };
	double v = (double)n;
	int i = 0;

	for (; v >= 1024 && i < 4; i++)
		v /= 1024;
	snprintf(out, 32, "%.*f %s", i && v < 100 ? 1 : 0, v, unit[i]);
	return out;
}

/* Bytes of memory that programs could have now; 0: not known. */
static int64_t free_memory(void)
{
	FILE *f = fopen("/proc/meminfo", "re");
	char line[128];
	int64_t kib = 0;

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "MemAvailable: %" SCNd64, &kib) == 1)
			break;
	if (f)
		fclose(f);
	return kib * 1024;
}

/* ---- which files ---------------------------------------------------------------------------------- */

static bool ends(const char *s, const char *end)
{
	size_t n = strlen(s), k = strlen(end);

	return n >= k && !strcmp(s + n - k, end);
}

/* A GGUF with weights of a language model: no projector of a vision tower, no matrix of importance. */
static bool is_gguf(const struct hub_file *f)
{
	const char *slash = strrchr(f->path, '/'), *name = slash ? slash + 1 : f->path;

	return ends(name, ".gguf") && strncasecmp(name, "mmproj", 6) && !strstr(name, "imatrix");
}

/* What a directory of a Hugging Face model needs: settings, tokenizer, weights in safetensors. */
static bool is_hf(const struct hub_repo *r, const struct hub_file *f)
{
	static const char *const end[] = { ".safetensors", ".json", ".jinja", ".model", ".txt", ".tiktoken" };
	bool named = false, consolidated = !strncmp(f->path, "consolidated", 12);

	if (strchr(f->path, '/'))
		return !strcmp(f->path, "1_Pooling/config.json");
	for (size_t i = 0; i < sizeof(end) / sizeof(*end); i++)
		named |= ends(f->path, end[i]);
	/* The same weights once more, in their maker's own format. */
	for (int32_t i = 0; consolidated && i < r->n; i++)
		if (!strncmp(r->file[i].path, "model", 5) && ends(r->file[i].path, ".safetensors"))
			return false;
	return named;
}

static bool has_hf(const struct hub_repo *r)
{
	bool config = false, weights = false;

	for (int32_t i = 0; i < r->n; i++) {
		config |= !strcmp(r->file[i].path, "config.json");
		weights |= !strchr(r->file[i].path, '/') && ends(r->file[i].path, ".safetensors");
	}
	return config && weights;
}

struct quant {
	char name[64];
	int64_t bytes;
	int32_t files;
};

/* The last part of a GGUF's name, as QUANT takes it: Q4_K_M of x-Q4_K_M-00001-of-00002.gguf. */
static void quant_of(const char *path, char out[64])
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *from = name;
	int32_t part;
	size_t n = locate_stem(name, &part);

	for (size_t i = 0; i < n; i++)
		if (name[i] == '-' || name[i] == '.')
			from = name + i + 1;
	snprintf(out, 64, "%.*s", (int)(name + n - from), from);
}

/* The quantizations of a repository, by size. */
static int by_bytes(const void *a, const void *b)
{
	int64_t x = ((const struct quant *)a)->bytes, y = ((const struct quant *)b)->bytes;

	return x < y ? -1 : x > y;
}

static int quants_of(const struct hub_repo *r, struct quant q[QUANTS_MAX])
{
	int n = 0;

	for (int32_t i = 0; i < r->n; i++) {
		char name[64];
		int k = 0;

		if (!is_gguf(&r->file[i]))
			continue;
		quant_of(r->file[i].path, name);
		while (k < n && strcasecmp(q[k].name, name))
			k++;
		if (k == QUANTS_MAX)
			continue;
		if (k == n) {
			q[n] = (struct quant){ .files = 0 };
			memcpy(q[n++].name, name, sizeof(name));
		}
		q[k].bytes += r->file[i].bytes;
		q[k].files++;
	}
	qsort(q, (size_t)n, sizeof(*q), by_bytes);
	return n;
}

static int64_t hf_bytes(const struct hub_repo *r)
{
	int64_t n = 0;

	for (int32_t i = 0; i < r->n; i++)
		n += is_hf(r, &r->file[i]) ? r->file[i].bytes : 0;
	return n;
}

static void print_row(const char *name, int64_t bytes, int32_t files, int64_t memory)
{
	char size[32];

	printf("  %-20s %10s  %3d file%s  %s\n", name, size_text(size, bytes), files, files == 1 ? " " : "s",
	       !memory                   ? ""
	       : bytes > memory          ? "larger than the free memory"
	       : bytes > memory / 10 * 8 ? "leaves little of the free memory for KV"
	                                 : "fits the free memory");
}

static void print_choice(const struct pull *p)
{
	struct quant q[QUANTS_MAX];
	int n = quants_of(&p->repo, q);
	int64_t memory = free_memory();
	char size[32];

	printf("%s at %.12s", p->id, p->repo.commit);
	if (memory)
		printf("; this machine has %s of memory free", size_text(size, memory));
	printf(":\n\n");
	if (has_hf(&p->repo))
		print_row("(safetensors)", hf_bytes(&p->repo), p->repo.n, memory);
	for (int i = 0; i < n; i++)
		print_row(q[i].name, q[i].bytes, q[i].files, memory);
	if (n)
		printf("\nTo download one: slipring pull %s:%s\n", p->id, q[0].name);
}

/* Choose what to download.  0; -EINVAL with a sentence: it is not clear. */
static int choose(struct pull *p)
{
	struct quant q[QUANTS_MAX];
	int n = quants_of(&p->repo, q);
	const char *quant = p->quant;
	bool hf = !quant && has_hf(&p->repo);
	char stem[64];

	if (!quant && !hf && n == 1)
		quant = q[0].name;
	if (!quant && !hf && n)
		return refuse(-EINVAL, p->err, sizeof(p->err),
		              "%s has %d GGUF models: choose one as in %s:%s (--list shows them)", p->id, n, p->id,
		              q[0].name);
	if (!quant && !hf)
		return refuse(-EINVAL, p->err, sizeof(p->err),
		              "%s has no safetensors with a config.json, and no GGUF file", p->id);
	p->want = calloc((size_t)p->repo.n + 1, sizeof(*p->want));
	if (!p->want)
		return refuse(-ENOMEM, p->err, sizeof(p->err), "there is no memory for the list of files");
	for (int32_t i = 0; i < p->repo.n; i++) {
		const struct hub_file *f = &p->repo.file[i];

		if (hf ? !is_hf(&p->repo, f) : !is_gguf(f) || !locate_quant(f->path, quant))
			continue;
		if (!hf && p->n_want) { /* parts of one model, not two models */
			char other[64];

			quant_of(p->want[0]->path, stem);
			quant_of(f->path, other);
			if (strcasecmp(stem, other))
				return refuse(-EINVAL, p->err, sizeof(p->err),
				              "%s has both %s and %s: write more of the name than %s", p->id,
				              p->want[0]->path, f->path, quant);
		}
		p->want[p->n_want++] = f;
	}
	if (!p->n_want)
		return refuse(-EINVAL, p->err, sizeof(p->err),
		              "no GGUF file of %s ends in %s (--list shows what there is)", p->id, quant);
	return 0;
}

/* ---- progress ------------------------------------------------------------------------------------- */

static void show_progress(struct pull *p, bool last)
{
	double seconds = (double)(sr_now() - p->begun) / 1e9,
		   rate = (double)(p->have - p->begun_with) / (seconds + 1e-9);
	char a[32], b[32], c[32], bar[31];
	int64_t left = p->all - p->have;
	int filled = p->all ? (int)(30 * p->have / p->all) : 30;

	memset(bar, '.', 30);
	memset(bar, '#', (size_t)filled);
	bar[30] = 0;
	size_text(a, p->have);
	size_text(b, p->all);
	size_text(c, (int64_t)rate);
	if (p->terminal)
		fprintf(visible_raw(stderr), "\r%s %s of %s, %s/s, %.0f s left \033[K%s", bar, a, b, c,
		        rate > 0 ? (double)left / rate : 0, last ? "\n" : "");
	else
		fprintf(stderr, "%s of %s, %s/s\n", a, b, c);
}

static void more(void *ctx, int64_t n)
{
	struct pull *p = ctx;
	uint64_t now = sr_now(), every = p->terminal ? 200000000 : 10000000000;

	p->have += n;
	if (p->json || now - p->begun < 2000000000 || now - p->shown < every)
		return;
	p->shown = now;
	show_progress(p, false);
}

/* ---- the command ---------------------------------------------------------------------------------- */

static int check_room(struct pull *p)
{
	int64_t room = store_room(&p->store);
	char a[32], b[32];

	if (room < 0 || p->all - p->have <= room)
		return 0;
	return refuse(-ENOSPC, p->err, sizeof(p->err), "%s more are to come, and the disk of %s has %s left",
	              size_text(a, p->all - p->have), p->store.repo, size_text(b, room));
}

static int fetch_all(struct pull *p, struct hub *h)
{
	int rc = store_open(&p->store, p->id, p->err, sizeof(p->err));

	if (rc)
		return rc;
	for (int32_t i = 0; i < p->n_want; i++) {
		p->all += p->want[i]->bytes;
		p->have +=
			store_has(&p->store, p->want[i]) ? p->want[i]->bytes : store_partial(&p->store, p->want[i]);
	}
	p->begun_with = p->have;
	p->begun = sr_now();
	p->store.more = more;
	p->store.ctx = p;
	rc = check_room(p);
	for (int32_t i = 0; i < p->n_want && !rc; i++)
		rc = store_fetch(&p->store, h, &p->repo, p->want[i], p->err, sizeof(p->err));
	if (p->shown)
		show_progress(p, true);
	return rc ? rc : store_finish(&p->store, &p->repo, p->err, sizeof(p->err));
}

static void report(const struct pull *p)
{
	char size[32], name[330];

	snprintf(name, sizeof(name), "%s%s%s", p->id, p->quant ? ":" : "", p->quant ? p->quant : "");
	if (p->json) {
		json_t *j = json_pack("{s:s, s:s, s:s, s:I, s:I, s:[]}", "id", p->id, "commit", p->repo.commit,
		                      "model", name, "bytes", (json_int_t)p->all, "downloaded",
		                      (json_int_t)(p->all - p->begun_with), "files");

		for (int32_t i = 0; i < p->n_want; i++)
			json_array_append_new(json_object_get(j, "files"),
			                      json_pack("{s:s, s:I, s:s}", "path", p->want[i]->path, "bytes",
			                                (json_int_t)p->want[i]->bytes, "hash", p->want[i]->etag));
		json_dumpf(j, stdout, JSON_COMPACT);
		putchar('\n');
		json_decref(j);
		return;
	}
	size_text(size, p->all - p->begun_with);
	printf("%s: %d file%s, %s downloaded, all checked.\n", name, p->n_want, p->n_want == 1 ? "" : "s", size);
	if (strcmp(p->revision, "main"))
		printf("It is revision %s: slipring serve %s/snapshots/%s\n", p->revision, p->store.repo,
		       p->repo.commit);
	else
		printf("To serve it: slipring serve %s\n", name);
}

static int read_words(struct pull *p, int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--list"))
			p->list = true;
		else if (!strcmp(argv[i], "--json"))
			p->json = true;
		else if (!strcmp(argv[i], "--revision") && i + 1 < argc && *argv[i + 1])
			p->revision = argv[++i];
		else if (*argv[i] != '-' && !*p->id && strlen(argv[i]) < sizeof(p->id))
			strcpy(p->id, argv[i]);
		else
			return command_wrong("pull", argv, i, i);
	}
	if (!*p->id)
		return fprintf(stderr, "slipring pull: which model?  For example: slipring pull org/name:Q4_K_M\n"),
		       2;
	p->quant = strchr(p->id, ':');
	if (p->quant) {
		p->id[p->quant - p->id] = 0;
		p->quant++;
	}
	if (!locate_is_id(p->id) || (p->quant && !*p->quant) || !hub_path_is_safe(p->revision))
		return fprintf(stderr,
		               "slipring pull: a model is org/name or org/name:QUANT, a revision a branch, tag or "
		               "commit\n"),
		       2;
	return 0;
}

int cmd_pull(int argc, char **argv)
{
	struct pull p = { .revision = "main", .terminal = isatty(2) };
	struct hub *h;
	int rc;

	if (argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")))
		return pull_usage();
	rc = read_words(&p, argc, argv);
	if (rc)
		return rc;
	h = hub_open(p.err, sizeof(p.err));
	if (!h)
		return failed(&p);
	rc = hub_list(h, p.id, p.revision, &p.repo, p.err, sizeof(p.err));
	if (!rc && p.list)
		print_choice(&p);
	else if (!rc)
		rc = choose(&p);
	if (!rc && !p.list)
		rc = fetch_all(&p, h);
	if (!rc && !p.list)
		report(&p);
	hub_close(h);
	rc = rc ? failed(&p) : 0;
	hub_free(&p.repo);
	free(p.want);
	return rc;
}
