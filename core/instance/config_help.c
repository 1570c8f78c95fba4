/* config_help.c - prints the table of options as help. */
#include "config.h"

#include <errno.h>
#include <string.h>

#include "options.h"

static const struct { const char *name, *title; } topics[N_TOPICS] = {
	[MODEL]    = { "model",     "The model and how it is read" },
	[MEMORY]   = { "memory",    "KV cache and memory" },
	[SCHED]    = { "scheduler", "Batching and queueing" },
	[DEVICE]   = { "device",    "Device and threads" },
	[SERVER]   = { "server",    "The service: addresses, keys and limits" },
	[HTTP]     = { "http",      "Answers over HTTP" },
	[TLS]      = { "tls",       "TLS" },
	[LOGGING]  = { "logging",   "Logs and metrics" },
	[PARALLEL] = { "parallel",  "Several devices and replicas" },
	[OTHER]    = { "other",     "Other flags of vLLM, accepted so that scripts start unchanged" },
};

static void print_wrapped(FILE *to, const char *s)
{
	static const int indent = 8, width = 96;
	int column = indent;

	fprintf(to, "%*s", indent, "");
	for (size_t n; *s; s += n, s += *s == ' ') {
		n = strcspn(s, " ");
		if (column > indent && column + (int)n + 1 > width) {
			fprintf(to, "\n%*s", indent, "");
			column = indent;
		}
		column += fprintf(to, "%s%.*s", column > indent ? " " : "", (int)n, s);
	}
	fputc('\n', to);
}

static void print_option(FILE *to, const struct option *o)
{
	static const char *const meta[] = {
		[YESNO] = "", [INT] = " N", [SIZE] = " N", [SIZE_AUTO] = " N", [U64] = " N", [NUMBER] = " X",
		[TEXT] = " TEXT", [WORD] = " WORD", [LIST] = " TEXT ..", [PARTS] = " JSON",
	};

	fprintf(to, "  --%s%s%s", o->kind == YESNO && o->action == SET ? "[no-]" : "", o->name,
	        meta[o->kind]);
	for (const char *at = o->also; at; at = NULL)
		fprintf(to, ", %s", at);
	if (o->action == SET && o->value && *o->value && strcmp(o->value, "0") != 0)
		fprintf(to, "   (default %s)", o->value);
	if (o->action == SET && o->max > o->min)
		fprintf(to, "   (%.16g to %.16g)", o->min, o->max);
	fputc('\n', to);
	if (o->choices)
		fprintf(to, "        one of: %s\n", o->choices);
	print_wrapped(to, o->help);
	if (o->action == ONLY && o->kind != YESNO)
		fprintf(to, "        vLLM's flag; accepted: %s\n", *o->value ? o->value : "none");
	else if (o->action == ONLY)
		fprintf(to, "        vLLM's flag; refused\n");
	else if (o->action != SET)
		fprintf(to, "        vLLM's flag; accepted, has no effect\n");
}

static void print_short(FILE *to, enum config_for who)
{
	static const char *const program[] = { [FOR_DAEMON] = "slipringd", [FOR_HTTP] = "slipring-http",
	                                       [FOR_SERVE] = "slipring serve" };

	fprintf(to, "usage: %s [MODEL] [--flag VALUE ..] [--config FILE.yaml]\n\n", program[who]);
	for (int i = 0; i < n_options; i++)
		if (options[i].common && (options[i].who & who || who == FOR_SERVE))
			print_option(to, &options[i]);
	fprintf(to, "\n"
	            "  --config FILE.yaml   lines of \"flag: value\"; the command line overrides them\n"
	            "  --help TOPIC         more: ");
	for (int t = 0; t < N_TOPICS; t++)
		fprintf(to, "%s, ", topics[t].name);
	fprintf(to, "all\n  --help FLAG          one of them\n  --version\n\nN may be written 4k (4000) or "
	            "4K (4096); in flags - and _ are the same.\n");
}

int config_help(FILE *to, const char *topic, enum config_for who)
{
	bool all = topic && strcmp(topic, "all") == 0;
	char err[300];
	int i, shown = 0;

	if (!topic || !*topic) {
		print_short(to, who);
		return 0;
	}
	for (int t = 0; t < N_TOPICS; t++) {
		if (!all && strcmp(topics[t].name, topic) != 0)
			continue;
		fprintf(to, "%s%s\n\n", shown++ ? "\n" : "", topics[t].title);
		for (i = 0; i < n_options; i++)
			if (options[i].topic == t && (options[i].who & who || who == FOR_SERVE))
				print_option(to, &options[i]);
	}
	if (shown)
		return 0;
	while (*topic == '-')
		topic++;
	i = config_option(topic, err, sizeof(err));
	if (i >= 0)
		print_option(to, &options[i]);
	return i >= 0 ? 0 : -EINVAL;
}
