/* report.c - slipring report: makes a page from result files, or from the file of a sweep. */
#include "report.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "tools/commands.h"
#include "compare.h"
#include "core/instance/refuse.h"

#define FILES 256

struct files {
	struct result result[FILES];
	struct report_of of[FILES];
	size_t n;
	json_t *sweep, *comparison;
};

static int report_usage(FILE *to)
{
	fprintf(to, "slipring report [-o OUT.html] FILE ...\n"
	        "\n"
	        "Makes one page of HTML with pictures, and a CSV file beside it, from results of\n"
	        "`slipring bench serve` or `vllm bench serve` (files, or names given to --save-baseline), or\n"
	        "from the sweep.json of `slipring bench sweep`.  Two results are compared.  Save them with\n"
	        "--save-detailed.\n"
	        "\n"
	        "  -o, --output FILE   default: report.html\n");
	return to == stdout ? 0 : 2;
}

static int add_result(struct files *f, const char *path, const char *name, const json_t *point, char *err,
                      size_t errlen)
{
	struct result *r = &f->result[f->n];
	json_t *runs;
	int rc;

	if (f->n == FILES)
		return refuse(-E2BIG, err, errlen, "%s: more than %d results do not fit one page", path, FILES);
	rc = compare_read(r, path, err, errlen);
	if (rc)
		return rc;
	runs = json_array();
	for (int i = 0; i < r->n; i++)
		json_array_append(runs, r->run[i]);
	f->of[f->n++] = (struct report_of){ .name = name, .runs = runs, .point = point };
	return 0;
}

/* Add the points of a sweep, which are files beside it. */
static int add_sweep(struct files *f, const char *path, char *err, size_t errlen)
{
	const json_t *points = json_object_get(f->sweep, "points");
	const char *slash = strrchr(path, '/');
	char file[PATH_MAX];
	json_t *point;
	int rc = 0;
	size_t i;

	if (json_integer_value(json_object_get(f->sweep, "format")) != 1 || !json_array_size(points))
		return refuse(-EINVAL, err, errlen, "%s: field \"%s\": this version cannot read this sweep", path,
		              json_array_size(points) ? "format" : "points");
	json_array_foreach(points, i, point) {
		const char *name = json_string_value(json_object_get(point, "name"));
		const char *of = json_string_value(json_object_get(point, "file"));

		if (!name || !of || strchr(of, '/'))
			return refuse(-EINVAL, err, errlen, "%s: field \"points\", entry %zu: it needs \"name\" and "
			              "\"file\" (without a folder)", path, i);
		if (!json_integer_value(json_object_get(point, "runs")))
			continue;             /* the sweep was interrupted before this point */
		snprintf(file, sizeof(file), "%.*s%s", slash ? (int)(slash - path + 1) : 0, path, of);
		rc = add_result(f, file, name, point, err, errlen);
		if (rc)
			return rc;
	}
	if (!f->n)
		snprintf(err, errlen, "%s: nothing was measured in this sweep", path);
	return f->n ? 0 : -EINVAL;
}

static int read_files(struct files *f, char **name, int n, char *err, size_t errlen)
{
	int rc = 0;

	if (n == 1 && (f->sweep = json_load_file(name[0], 0, NULL)) && json_object_get(f->sweep, "points"))
		return add_sweep(f, name[0], err, errlen);
	for (int i = 0; !rc && i < n; i++) {
		const char *slash = strrchr(name[i], '/');

		rc = add_result(f, name[i], slash && slash[1] ? slash + 1 : name[i], NULL, err, errlen);
	}
	if (!rc && f->n == 2)
		f->comparison = compare_results(&f->result[0], &f->result[1]);
	return rc;
}

static void free_all(struct files *f)
{
	for (size_t i = 0; i < f->n; i++) {
		json_decref(f->of[i].runs);
		compare_free(&f->result[i]);
	}
	json_decref(f->sweep);
	json_decref(f->comparison);
}

int report_files(const char *out, char **name, int n, char *err, size_t errlen)
{
	static struct files f;
	int rc;

	f = (struct files){ 0 };
	rc = read_files(&f, name, n, err, errlen);
	if (!rc)
		rc = report_write(out, f.of, f.n, f.comparison, err, errlen);
	free_all(&f);
	return rc;
}

int cmd_report(int argc, char **argv)
{
	const char *out = "report.html";
	char err[5000], **name = calloc((size_t)argc, sizeof(*name));
	int n = 0, rc = 0;

	for (int i = 1; name && i < argc; i++) {
		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
			free(name);
			return report_usage(stdout);
		}
		if ((!strcmp(argv[i], "-o") || !strcmp(argv[i], "--output")) && i + 1 < argc) {
			out = argv[++i];
		} else if (argv[i][0] != '-') {
			name[n++] = argv[i];
		} else {
			free(name);
			return command_wrong("report", argv, i, i);
		}
	}
	if (!n) {
		free(name);
		return report_usage(stderr);
	}
	rc = report_files(out, name, n, err, sizeof(err));
	if (rc)
		fprintf(stderr, "slipring report: %s\n", err);
	else
		printf("Report: %s\n", out);
	free(name);
	return rc ? 1 : 0;
}
