/* slipring.c - the command: finds the subcommand and runs it.  Each subcommand has its own file with
 * int cmd_NAME(int argc, char **argv), where argv[0] is its name.  It returns the exit code.
 *
 * Called as `vllm`, by a link, --version ends with the version of vLLM whose flags and routes are here:
 * KServe chooses flags by that word, and then runs `vllm serve`.  That listens on all addresses. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "core/instance/config.h"
#include "core/instance/log.h"
#include "visible.h"

#define AS_VLLM "0.32.0"        /* the vLLM that docs/vllm.md compares with */

static const struct { const char *name; int (*run)(int, char **); const char *what; } command[] = {
	{ "serve",    cmd_serve,    "serve a model: runs the daemon and the OpenAI server in the foreground" },
	{ "chat",     cmd_chat,     "talk to the model in the terminal, over the rings" },
	{ "generate", cmd_generate, "continue a text, over the rings" },
	{ "batch",    cmd_batch,    "answer a file of requests, over the rings; goes on where it was cut off" },
	{ "bench",    cmd_bench,    "measure a server as vllm bench serve does, or the rings" },
	{ "compare",  cmd_compare,  "show what changed between two benchmarks, beyond noise" },
	{ "report",   cmd_report,   "make one page with pictures from results of benchmarks" },
	{ "show",     cmd_show,     "show what is in a model and how much memory it needs here" },
	{ "pull",     cmd_pull,     "download a model from the Hugging Face hub" },
	{ "connect",  cmd_connect,  "let Claude Code, Codex and others use a server of yours" },
	{ "quantize", cmd_quantize, "make a 4-bit model (AWQ) from a 16-bit one" },
	{ "top",      cmd_top,      "watch rates, latencies, limits, KV cache, clients and GPUs" },
	{ "why",      cmd_why,      "show what limited the daemon, and which knob helps" },
	{ "set",      cmd_set,      "change a setting while the daemon runs" },
	{ "tune",     cmd_tune,     "find the best settings for your traffic, and prove them" },
	{ "record",   cmd_record,   "record real traffic as a trace that can be replayed" },
	{ "doctor",   cmd_doctor,   "show what is wrong with this machine or server, and what to do" },
	{ "setup",    cmd_setup,    "prepare this machine: huge pages, limits, users, units" },
	{ "ping",     cmd_ping,     "measure the round trip of an empty record" },
};
#define N_COMMANDS ((int)(sizeof(command) / sizeof(command[0])))

static int slipring_usage(FILE *to)
{
	fprintf(to, "Slipring serves language models to the programs of one machine.\n\n"
	            "  slipring COMMAND [ARGUMENTS]\n\n");
	for (int i = 0; i < N_COMMANDS; i++)
		fprintf(to, "  %-10s %s\n", command[i].name, command[i].what);
	fprintf(to, "\n"
	            "Begin with:  slipring serve            serves the default model on http://127.0.0.1:8000\n"
	            "             slipring chat             in another terminal\n"
	            "Each command explains itself:  slipring COMMAND --help\n");
	return to == stdout ? 0 : 2;
}

int main(int argc, char **argv)
{
	const char *name[N_COMMANDS], *near, *slash = argc ? strrchr(argv[0], '/') : NULL;
	const bool as_vllm = argc && !strcmp(slash ? slash + 1 : argv[0], "vllm");
	static char help[] = "--help";

	if (as_vllm)
		setenv(CONFIG_AS_VLLM, "1", 1);   /* for the programs that it starts, too */
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
		printf(as_vllm ? "slipring %s, as vLLM " AS_VLLM "\n" : "slipring %s\n", SLIPRING_VERSION);
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
