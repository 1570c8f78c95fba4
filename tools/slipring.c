/* slipring.c - the command: finds the subcommand and runs it.  Each subcommand has its own file with
 * int cmd_NAME(int argc, char **argv), where argv[0] is its name.  It returns the exit code. */
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "core/instance/config.h"
#include "core/instance/log.h"
#include "visible.h"

static const struct { const char *name; int (*run)(int, char **); const char *what; } command[] = {
	{ "serve",    cmd_serve,    "serve a model: daemon and OpenAI server in the foreground" },
	{ "chat",     cmd_chat,     "talk to it in the terminal, over the rings" },
	{ "generate", cmd_generate, "continue a text, over the rings" },
	{ "bench",    cmd_bench,    "measure a server, as vllm bench serve does; or the rings" },
	{ "compare",  cmd_compare,  "what changed between two benchmarks, beyond noise" },
	{ "report",   cmd_report,   "results of benchmarks as one page with pictures" },
	{ "show",     cmd_show,     "what is in a model, and what it needs here" },
	{ "quantize", cmd_quantize, "a model of 4 bits (AWQ) from one of 16" },
	{ "top",      cmd_top,      "live: rates, latencies, limits, KV cache, clients, GPUs" },
	{ "why",      cmd_why,      "what limited it, and the knob to turn" },
	{ "set",      cmd_set,      "change a setting while it runs" },
	{ "tune",     cmd_tune,     "the settings that are best for your traffic, proved" },
	{ "record",   cmd_record,   "real traffic as a trace, to be replayed" },
	{ "doctor",   cmd_doctor,   "what is wrong with this machine or server, and what to do" },
	{ "setup",    cmd_setup,    "huge pages, limits, users, units: make this machine fit to serve" },
	{ "ping",     cmd_ping,     "the round trip of an empty record" },
};
#define N_COMMANDS ((int)(sizeof(command) / sizeof(command[0])))

static int slipring_usage(FILE *to)
{
	fprintf(to, "Slipring serves language models to the programs of one machine.\n\n"
	            "  slipring COMMAND [ARGUMENTS]\n\n");
	for (int i = 0; i < N_COMMANDS; i++)
		fprintf(to, "  %-10s %s\n", command[i].name, command[i].what);
	fprintf(to, "\nBegin with:  slipring serve            the default model on http://127.0.0.1:8000\n"
	            "             slipring chat             in another terminal\n"
	            "Each command explains itself:  slipring COMMAND --help\n");
	return to == stdout ? 0 : 2;
}

int main(int argc, char **argv)
{
	const char *name[N_COMMANDS], *near;
	static char help[] = "--help";

	log_open("slipring");
	visible_start();
	if (argc < 2)
		return slipring_usage(stderr);
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
		if (argc < 3)
			return slipring_usage(stdout);
		argv[1] = argv[2];                /* slipring help serve = slipring serve --help */
		argv[2] = help;
	}
	if (!strcmp(argv[1], "--version")) {
		printf("slipring %s\n", SLIPRING_VERSION);
		return 0;
	}
	for (int i = 0; i < N_COMMANDS; i++) {
		if (!strcmp(argv[1], command[i].name))
			return command[i].run(argc - 1, argv + 1);
		name[i] = command[i].name;
	}
	near = config_nearest(argv[1], name, N_COMMANDS);
	fprintf(stderr, "slipring: unknown command \"%s\"%s%s%s; see slipring --help\n", argv[1],
	        near ? ", did you mean \"" : "", near ? near : "", near ? "\"?" : "");
	return 2;
}
