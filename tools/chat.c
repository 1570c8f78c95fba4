/* chat.c - slipring chat: a conversation in the terminal, over the rings.
 *
 * It attaches to a running daemon.  If none listens, it starts its own, which ends with it.
 */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "commands.h"
#include "session.h"
#include "terminal.h"
#include "core/instance/refuse.h"

#define MAX_TOKENS 1024          /* of an answer, by default */
#define START_S 120              /* our own daemon must be ready within this time */

static volatile sig_atomic_t interrupted;

static void chat_interrupt(int sig)
{
	(void)sig;
	interrupted = 1;
}

struct chat {
	struct session_options o;
	struct session s;
	json_t *messages;
	json_t *tools;               /* or NULL */
	const char *system;          /* first message, or NULL */
	char *answer;                /* text of the answer under way */
	size_t n_answer, answer_cap;
	struct words shown;          /* the same on its way to the terminal */
	pid_t daemon;                /* our own, or 0 */
	char instance[32];           /* its name */
};

static int chat_usage(FILE *to)
{
	fprintf(to, "slipring chat [OPTIONS]\n"
	            "\n"
	            "Talks to the running daemon (slipring serve), or starts one of its own.\n"
	            "\n"
	            "%s  --tools FILE            a JSON array of tools, shown to the model by its template\n"
	            "  --system TEXT           the system message\n"
	            "  --once PROMPT           print the answer to PROMPT and its speed, then end\n"
	            "\n"
	            "While talking: Ctrl-C ends an answer, Ctrl-D or /quit the conversation; /reset forgets\n"
	            "it, /system TEXT begins anew with another system message, /help lists these.\n",
	        session_help);
	return to == stdout ? 0 : 2;
}

/* ---- a daemon of our own --------------------------------------------------------------------- */

_Noreturn static void run_daemon(const struct chat *c, int log)
{
	char path[PATH_MAX + 32];
	char *argv[] = { (char[]){ "slipringd" }, (char[]){ "--instance" }, (char *)(uintptr_t)c->instance,
	                 (char[]){ "--model" }, (char *)(uintptr_t)c->o.model, NULL };
	ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 1);
	char *slash;

	if (!c->o.model)
		argv[3] = NULL;
	setpgid(0, 0);                        /* Ctrl-C is for the answer */
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	dup2(log, STDOUT_FILENO);
	dup2(log, STDERR_FILENO);
	if (n > 0) {
		path[n] = 0;
		if ((slash = strrchr(path, '/'))) {
			strcpy(slash + 1, "slipringd");
			execv(path, argv);
		}
	}
	execvp("slipringd", argv);
	dprintf(STDERR_FILENO, "slipringd cannot be started: %s; it must be beside slipring or in PATH\n",
	        strerror(errno));
	_exit(127);
}

static void show_log(FILE *log)
{
	char line[1024];

	rewind(log);
	while (fgets(line, sizeof(line), log))
		fputs(line, stderr);
}

/* Wait until the daemon accepts connections.  If it fails, the reason is in its log. */
static int await_daemon(struct chat *c, FILE *log, char *err, size_t errlen)
{
	struct timespec pause = { .tv_nsec = 20000000 };
	int status, rc;

	for (int i = 0; i < START_S * 50 && !interrupted; i++) {
		rc = session_open(&c->s, &c->o, err, errlen);
		if (rc != -ENOENT && rc != -ECONNREFUSED)
			return rc;
		if (waitpid(c->daemon, &status, WNOHANG) == c->daemon) {
			c->daemon = 0;
			fputc('\n', stderr);
			show_log(log);
			return refuse(-ECHILD, err, errlen, "the daemon ended before it was ready");
		}
		if (i % 25 == 24 && isatty(STDERR_FILENO))
			fputc('.', stderr);
		nanosleep(&pause, NULL);
	}
	if (interrupted)
		return refuse(-EINTR, err, errlen, "interrupted while the daemon started");
	show_log(log);
	return refuse(-ETIMEDOUT, err, errlen, "the daemon was not ready within %d s", START_S);
}

static int start_daemon(struct chat *c, char *err, size_t errlen)
{
	FILE *log = tmpfile();
	int rc;

	if (!log) {
		snprintf(err, errlen, "no temporary file for the daemon's log: %s", strerror(errno));
		return -errno;
	}
	snprintf(c->instance, sizeof(c->instance), "chat-%d", getpid());
	c->o.instance = c->instance;
	fprintf(stderr, "no daemon is running; starting one for this conversation ");
	c->daemon = fork();
	if (c->daemon == 0)
		run_daemon(c, fileno(log));
	rc = c->daemon < 0 ? -errno : await_daemon(c, log, err, errlen);
	fputc('\n', stderr);
	fclose(log);
	return rc;
}

static void stop_daemon(struct chat *c)
{
	if (c->daemon <= 0)
		return;
	kill(c->daemon, SIGTERM);
	waitpid(c->daemon, NULL, 0);
}

/* ---- one turn -------------------------------------------------------------------------------- */

static void print(void *arg, const char *s, size_t n)
{
	struct chat *c = arg;
	size_t cap = c->answer_cap ? c->answer_cap : 4096;
	char *p;

	words_put(&c->shown, s, n);
	fflush(stdout);
	while (cap < c->n_answer + n)
		cap *= 2;
	if (cap != c->answer_cap) {
		p = realloc(c->answer, cap);
		if (!p)
			return;              /* it was printed; it is only missing from the history */
		c->answer = p;
		c->answer_cap = cap;
	}
	memcpy(c->answer + c->n_answer, s, n);
	c->n_answer += n;
}

static void add_message(struct chat *c, const char *role, const char *s, size_t n)
{
	json_array_append_new(c->messages, json_pack("{s:s, s:s%}", "role", role, "content", s, n));
}

static void reset(struct chat *c)
{
	json_array_clear(c->messages);
	if (c->system)
		add_message(c, "system", c->system, strlen(c->system));
}

/* The conversation so far as the model's prompt. */
static int64_t render_prompt(struct chat *c, char **prompt, char *err, size_t errlen)
{
	json_t *vars = json_pack("{s:O}", "messages", c->messages);
	char *context;
	int64_t n;

	if (c->tools)
		json_object_set(vars, "tools", c->tools);
	context = vars ? json_dumps(vars, 0) : NULL;
	json_decref(vars);
	if (!context)
		return refuse(-ENOMEM, err, errlen, "no memory");
	n = sr_text_chat(c->s.text, NULL, context, prompt, err, errlen);
	free(context);
	return n;
}

static int chat_turn(struct chat *c, const char *text, size_t n)
{
	struct session_answer a;
	char err[600], line[200], *prompt = NULL;
	int64_t n_prompt;
	int rc;

	add_message(c, "user", text, n);
	n_prompt = render_prompt(c, &prompt, err, sizeof(err));
	interrupted = 0;
	c->n_answer = 0;
	c->shown = (struct words){ .to = stdout, .columns = words_columns(stdout) };
	rc = n_prompt < 0 ? (int)n_prompt :
	     session_ask(&c->s, &c->o, prompt, (size_t)n_prompt, SR_TEXT_SPECIAL_PARSE, print, c,
	                 &interrupted, &a, err, sizeof(err));
	free(prompt);
	if (rc) {
		fprintf(stderr, "slipring chat: %s%s\n", err, rc == -EMSGSIZE ? "; /reset begins anew" : "");
		json_array_remove(c->messages, json_array_size(c->messages) - 1);
		return rc;
	}
	words_end(&c->shown);
	putchar('\n');
	fflush(stdout);
	add_message(c, "assistant", c->answer ? c->answer : "", c->n_answer);
	session_summary(&a, line, sizeof(line));
	fprintf(stderr, "%s\n", line);
	return a.finish > 0 || a.finish == -ECANCELED ? 0 : a.finish;
}

/* Run a line that begins with "/".  True: the conversation is over. */
static bool command(struct chat *c, const char *line, char **system)
{
	if (!strcmp(line, "/quit") || !strcmp(line, "/exit"))
		return true;
	if (!strcmp(line, "/reset")) {
		reset(c);
	} else if (!strncmp(line, "/system", 7) && (!line[7] || line[7] == ' ')) {
		free(*system);
		*system = line[7] && line[8] ? strdup(line + 8) : NULL;
		c->system = *system;
		reset(c);
	} else {
		fprintf(stderr, "/quit  /reset  /system TEXT; Ctrl-C ends an answer\n");
	}
	return false;
}

/* A line of what is no terminal, as terminal_line() gives one. */
static ssize_t plain_line(char **line, size_t *cap)
{
	ssize_t n = getline(line, cap, stdin);

	if (n < 0 && errno == EINTR && interrupted) {
		clearerr(stdin);
		return -EINTR;
	}
	if (n > 0 && (*line)[n - 1] == '\n')
		(*line)[--n] = 0;
	return n < 0 ? -ENODATA : n;
}

static int converse(struct chat *c)
{
	bool tty = isatty(STDIN_FILENO) && isatty(STDERR_FILENO);
	char *own = NULL, *system = NULL;
	struct terminal *t = NULL;
	const char *line;
	size_t cap = 0;
	ssize_t n;
	int rc = 0;

	if (tty) {
		fprintf(stderr, "%.64s; /help lists the commands\n", sr_model(c->s.conn)->name);
		if (terminal_open(&t, &interrupted) < 0)
			return 1;
	}
	for (;;) {
		interrupted = 0;
		n = t ? terminal_line(t, &line) : plain_line(&own, &cap);
		if (!t)
			line = own;
		if (n == -EINTR) {                    /* Ctrl-C at the prompt: a new line */
			fputc('\n', stderr);
			continue;
		}
		if (n < 0)
			break;
		if (!n)
			continue;
		if (line[0] == '/') {
			if (command(c, line, &system))
				break;
			continue;
		}
		rc = chat_turn(c, line, (size_t)n);
		if (rc == -ECONNRESET)
			break;
	}
	terminal_close(t);
	free(own);
	free(system);
	return rc ? 1 : 0;
}

static int chat_run(struct chat *c, const char *once)
{
	struct sigaction on = { .sa_handler = chat_interrupt }; /* no SA_RESTART: it ends a read */
	char err[600] = "";
	int rc;

	sigaction(SIGINT, &on, NULL);
	rc = session_open(&c->s, &c->o, err, sizeof(err));
	if ((rc == -ENOENT || rc == -ECONNREFUSED) && !c->o.socket && !c->o.instance)
		rc = start_daemon(c, err, sizeof(err));
	if (rc) {
		fprintf(stderr, "slipring chat: %s\n", err);
		return 1;
	}
	c->messages = json_array();
	reset(c);
	rc = once ? chat_turn(c, once, strlen(once)) != 0 : converse(c);
	json_decref(c->messages);
	free(c->answer);
	session_close(&c->s);
	return rc;
}

/* The tools of a file, or NULL and a sentence. */
static json_t *load_tools(const char *path)
{
	json_error_t e;
	json_t *tools = json_load_file(path, 0, &e);

	if (json_is_array(tools))
		return tools;
	fprintf(stderr, "slipring chat: --tools %s: %s\n", path,
	        tools ? "it must be a JSON array of tools" : e.text);
	json_decref(tools);
	return NULL;
}

int cmd_chat(int argc, char **argv)
{
	struct chat c = { .o.ask.max_tokens = MAX_TOKENS };
	const char *once = NULL;
	char err[256];
	int rc;

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
			return chat_usage(stdout);
		if (!strcmp(argv[i], "--once") && i + 1 < argc) {
			once = argv[++i];
			continue;
		}
		if (!strcmp(argv[i], "--system") && i + 1 < argc) {
			c.system = argv[++i];
			continue;
		}
		if (!strcmp(argv[i], "--tools") && i + 1 < argc) {
			if (!(c.tools = load_tools(argv[++i])))
				return 1;
			continue;
		}
		rc = session_option(&c.o, argc, argv, &i, err, sizeof(err));
		if (rc > 0)
			continue;
		if (rc < 0)
			fprintf(stderr, "slipring chat: %s\n", err);
		else
			fprintf(stderr, "slipring chat: unknown option %s, or its value is missing; see slipring chat "
			                "--help\n", argv[i]);
		return 2;
	}
	rc = chat_run(&c, once);
	stop_daemon(&c);
	json_decref(c.tools);
	return rc;
}
