/* private.c - see batch.h.  The server lies in a folder that only our user may enter, and ends with us. */
#include "batch.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/instance/refuse.h"
#include "shmring/clock.h"

#define START_NS 60000000000u  /* for reading a large tokenizer on a slow disk */
#define OWN      8             /* words that we give it */

/* The program beside this one, else by PATH. */
static void run(char *const *argv)
{
	static const char *const dropped[] = { "LISTEN_FDS", "LISTEN_PID", "NOTIFY_SOCKET", "WATCHDOG_USEC",
	                                       "VLLM_API_KEY", "SLIPRING_API_KEY" };
	char path[PATH_MAX + 32], *slash;
	ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 1);

	prctl(PR_SET_PDEATHSIG, SIGTERM);
	setpgid(0, 0);                        /* Ctrl-C reaches us, and we end it */
	for (size_t i = 0; i < sizeof(dropped) / sizeof(dropped[0]); i++)
		unsetenv(dropped[i]);
	if (n > 0) {
		path[n] = 0;
		if ((slash = strrchr(path, '/'))) {
			strcpy(slash + 1, argv[0]);
			execv(path, argv);
		}
	}
	execvp(argv[0], argv);
	_exit(127);
}

bool private_alive(const struct private_server *s)
{
	siginfo_t i = { .si_pid = 0 };

	return s->pid > 0 && waitid(P_PID, (id_t)s->pid, &i, WEXITED | WNOHANG | WNOWAIT) == 0 && !i.si_pid;
}

bool private_word(struct private_words *w, const char *word)
{
	if (w->n < PRIVATE_WORDS)
		w->word[w->n++] = word;
	else
		return false;
	return true;
}

int private_open(struct private_server *s, const struct private_words *words, char *err, size_t errlen)
{
	char ready[128];
	const char *argv[OWN + PRIVATE_WORDS + 1] = { "slipring-http", "--uds", s->socket, "--uvicorn-log-level",
	                                              "warning", "--disable-access-log", "--ready-file", ready };
	const uint64_t until = sr_now() + START_NS;
	struct stat st;

	*s = (struct private_server){ .dir = "/tmp/slipring-batch-XXXXXX" };
	if (!mkdtemp(s->dir))
		return refuse(-errno, err, errlen, "%s: %s", s->dir, strerror(errno));
	snprintf(s->socket, sizeof(s->socket), "%s/http", s->dir);
	snprintf(ready, sizeof(ready), "%s/ready", s->dir);
	memcpy(argv + OWN, words->word, (size_t)words->n * sizeof(*argv));
	s->pid = fork();
	if (s->pid == 0)
		run((char *const *)(uintptr_t)argv);
	if (s->pid < 0)
		return refuse(-errno, err, errlen, "slipring-http cannot be started: %s", strerror(errno));
	while (stat(ready, &st) < 0 || !st.st_size) {
		if (!private_alive(s) || sr_now() > until) {
			private_close(s);
			return refuse(-ECHILD, err, errlen,
			              "the slipring-http of this batch did not start; it says above why");
		}
		usleep(10000);
	}
	return 0;
}

void private_close(struct private_server *s)
{
	char path[128];

	if (s->pid > 0) {
		kill(s->pid, SIGTERM);
		waitpid(s->pid, NULL, 0);
	}
	s->pid = 0;
	if (!*s->dir)
		return;
	unlink(s->socket);
	snprintf(path, sizeof(path), "%s/ready", s->dir);
	unlink(path);
	rmdir(s->dir);
}
