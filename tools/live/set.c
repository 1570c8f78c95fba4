/* set.c - slipring set: shows and changes settings of a running daemon.  The list is read from the stats
 * page, without the daemon.  A change is one message to the daemon; if it refuses, its answer says why. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "tools/commands.h"
#include "core/instance/config.h"
#include "core/instance/knobs.h"
#include "tools/instance.h"
#include "tools/serve_at.h"
#include "tools/save.h"
#include "turn.h"

static int set_usage(FILE *to)
{
	fprintf(to, "slipring set [--instance NAME] [--json]\n"
	        "slipring set [--instance NAME] KNOB VALUE [--save[=FILE]]\n"
	        "\n"
	        "Without KNOB: lists what can be changed while the daemon runs, with values and ceilings\n"
	        "(allocated at start: --knob-ceiling).\n"
	        "With KNOB: changes it from the next step on.  The daemon's own user, root and the members of\n"
	        "--operator-group may do so; the log names the user.\n"
	        "\n"
	        "  --instance NAME  which daemon (default: \"default\")\n"
	        "  --port N         the daemon that \"slipring serve --port N\" runs\n"
	        "  --save           also write it into the file that the daemon was started with (--config)\n"
	        "  --save=FILE      write it into this file instead; other lines stay as they are\n"
	        "  --json           for programs\n"
	        "\n");
	for (int k = 0; k < N_KNOBS; k++)
		fprintf(to, "  %-29s %s\n", knob_info((enum knob)k)->name, knob_info((enum knob)k)->what);
	return to == stdout ? 0 : 2;
}

/* ---- the list ---------------------------------------------------------------------------- */

static int list(const struct stats_page *p)
{
	char now[32], most[32];

	printf("%-29s %10s %10s  %-9s  %s\n", "knob", "now", "up to", "unit", "what it is");
	for (int k = 0; k < N_KNOBS; k++) {
		const struct knob_info *i = knob_info((enum knob)k);

		knob_format((enum knob)k, p->knob[k], now, sizeof(now));
		knob_format((enum knob)k, p->knob_ceiling[k], most, sizeof(most));
		printf("%-29s %10s %10s  %-9s  %s\n", i->name, now, i->words[0] ? "" : most, i->unit, i->what);
	}
	return 0;
}

static int list_json(const struct stats_page *p)
{
	json_t *all = json_object();
	char now[32], most[32];
	int e;

	for (int k = 0; k < N_KNOBS; k++) {
		const struct knob_info *i = knob_info((enum knob)k);

		knob_format((enum knob)k, p->knob[k], now, sizeof(now));
		knob_format((enum knob)k, p->knob_ceiling[k], most, sizeof(most));
		json_object_set_new(all, i->name, i->words[0] ?
			json_pack("{s:s, s:[s, s]}", "now", now, "words", i->words[0], i->words[1]) :
			json_pack("{s:f, s:f, s:s}", "now", atof(now), "ceiling", atof(most), "unit", i->unit));
	}
	e = json_dumpf(all, stdout, JSON_REAL_PRECISION(10));
	putchar('\n');
	json_decref(all);
	return e < 0;
}

/* ---- a change ---------------------------------------------------------------------------- */

static int save(const struct instance *in, enum knob k, int64_t value, const char *file)
{
	char text[32], err[6000];

	if (!*file)
		file = instance_config(in, err, sizeof(err));
	if (!file) {
		fprintf(stderr, "slipring set: not saved: %s; name the file: --save=FILE\n", err);
		return 1;
	}
	knob_format(k, value, text, sizeof(text));
	if (save_key(file, knob_info(k)->name, text, err, sizeof(err)) < 0) {
		fprintf(stderr, "slipring set: not saved: %s\n", err);
		return 1;
	}
	printf("saved in %s\n", file);
	return 0;
}

static int change_knob(struct instance *in, const char *knob, const char *text, const char *file, bool json)
{
	struct control_answer a;
	const char *names[N_KNOBS], *near;
	char err[400], was[32], now[32];
	int64_t value;
	int k = knob_find(knob);

	for (int i = 0; i < N_KNOBS; i++)
		names[i] = knob_info((enum knob)i)->name;
	if (k < 0) {
		near = config_nearest(knob, names, N_KNOBS);
		fprintf(stderr, "slipring set: unknown knob \"%s\"%s%s%s; \"slipring set\" lists them.  Other "
		        "settings need a restart\n", knob, near ? ", did you mean \"" : "", near ?
		        near : "", near ? "\"?" : "");
		return 2;
	}
	if (knob_parse((enum knob)k, text, &value, err, sizeof(err)) < 0) {
		fprintf(stderr, "slipring set: %s\n", err);
		return 2;
	}
	if (turn(in, (enum knob)k, value, &a, err, sizeof(err)) < 0) {
		fprintf(stderr, "slipring set: %s\n", err);
		return 1;
	}
	knob_format((enum knob)k, a.was, was, sizeof(was));
	knob_format((enum knob)k, a.now, now, sizeof(now));
	if (json)
		printf("{\"knob\": \"%s\", \"was\": \"%s\", \"now\": \"%s\"}\n", names[k], was, now);
	else
		printf("%s: %s -> %s\n", names[k], was, now);
	return file ? save(in, (enum knob)k, a.now, file) : 0;
}

int cmd_set(int argc, char **argv)
{
	const char *name = NULL, *port = NULL, *word[2] = { NULL, NULL }, *file = NULL;
	struct instance in;
	bool json = false;
	int n = 0, r;

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
			return set_usage(stdout);
		if (!strcmp(argv[i], "--json"))
			json = true;
		else if (!strcmp(argv[i], "--save"))
			file = "";
		else if (!strncmp(argv[i], "--save=", 7) && argv[i][7])
			file = argv[i] + 7;
		else if (!strcmp(argv[i], "--instance") && i + 1 < argc)
			name = argv[++i];
		else if (!strcmp(argv[i], "--port") && i + 1 < argc)
			port = argv[++i];
		else if (n < 2 && (argv[i][0] != '-' || n == 1 || knob_find(argv[i]) >= 0))
			word[n++] = argv[i];
		else
			return command_wrong("set", argv, i, i);
	}
	if (n == 1 || (n == 0 && file))
		return set_usage(stderr);
	if (port && !(name = serve_found("set", port)))
		return 1;
	if (instance_open(&in, "set", name) < 0)
		return 1;
	if (!in.page->ready_ns) {
		fprintf(stderr, "slipring set: %s is %s: its settings can be changed once it is ready\n", in.name,
		        in.page->state);
		r = 1;
	} else if (n == 0) {
		r = json ? list_json(in.page) : list(in.page);
	} else {
		r = change_knob(&in, word[0], word[1], file, json);
	}
	instance_close(&in);
	return r;
}
