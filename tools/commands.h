/* commands.h - the subcommands of slipring; each in the file of its name. */
#ifndef COMMANDS_H
#define COMMANDS_H

int cmd_serve(int argc, char **argv);
int cmd_chat(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_compare(int argc, char **argv);
int cmd_report(int argc, char **argv);
int cmd_show(int argc, char **argv);
int cmd_quantize(int argc, char **argv);
int cmd_ping(int argc, char **argv);
int cmd_top(int argc, char **argv);
int cmd_why(int argc, char **argv);
int cmd_set(int argc, char **argv);
int cmd_tune(int argc, char **argv);
int cmd_record(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_setup(int argc, char **argv);

#endif
