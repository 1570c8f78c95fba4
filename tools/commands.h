/* commands.h - the subcommands of slipring; each is in the file of its name. */
#ifndef COMMANDS_H
#define COMMANDS_H

#include <stdio.h>

int cmd_serve(int argc, char **argv);
int cmd_chat(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_batch(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_compare(int argc, char **argv);
int cmd_report(int argc, char **argv);
int cmd_show(int argc, char **argv);
int cmd_pull(int argc, char **argv);
int cmd_connect(int argc, char **argv);
int cmd_quantize(int argc, char **argv);
int cmd_ping(int argc, char **argv);
int cmd_top(int argc, char **argv);
int cmd_why(int argc, char **argv);
int cmd_set(int argc, char **argv);
int cmd_tune(int argc, char **argv);
int cmd_record(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_setup(int argc, char **argv);

/* The words first to last are not valid: print a sentence, and return the exit code of wrong usage. */
static inline int command_wrong(const char *command, char **argv, int first, int last)
{
	fprintf(stderr, "slipring %s: %s%s%s: there is no such option, or its value is missing or not allowed; "
	        "see slipring %s --help\n", command, argv[first], last > first ? " " : "",
	        last > first ? argv[last] : "", command);
	return 2;
}

#endif
